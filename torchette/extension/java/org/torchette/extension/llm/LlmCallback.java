// SPDX-License-Identifier: BSD-3-Clause
package org.torchette.extension.llm;

/** Receives a completion during its generation, on the thread that calls generate(). */
public interface LlmCallback {
  /** Receives a piece of the generated text, which contains only complete characters. */
  void onResult(String result);

  /** Receives counts and times as a JSON object at the end. */
  default void onStats(String stats) {}

  /** Receives the error code and message if the generation fails. */
  default void onError(int errorCode, String message) {}
}
