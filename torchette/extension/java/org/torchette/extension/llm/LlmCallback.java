// SPDX-License-Identifier: BSD-3-Clause
package org.torchette.extension.llm;

/** Hears an answer while it is made, on the thread that asked. */
public interface LlmCallback {
  /** A piece of the answer: whole characters. */
  void onResult(String result);

  /** At the end: counts and times as an object of JSON. */
  default void onStats(String stats) {}

  /** What went wrong, with the runtime's number of the error. */
  default void onError(int errorCode, String message) {}
}
