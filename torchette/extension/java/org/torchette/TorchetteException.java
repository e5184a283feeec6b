// SPDX-License-Identifier: BSD-3-Clause
package org.torchette;

/** What the runtime says when a call fails: its own words, and its number and name of the error. */
public final class TorchetteException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private final int code;
  private final String name;

  TorchetteException(int code, String name, String message) {
    super(message.isEmpty() ? name : name + ": " + message);
    this.code = code;
    this.name = name;
  }

  public int getErrorCode() {
    return code;
  }

  /** Such as "InvalidArgument". */
  public String getErrorName() {
    return name;
  }
}
