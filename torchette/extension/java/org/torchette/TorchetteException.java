// SPDX-License-Identifier: BSD-3-Clause
package org.torchette;

/** An error of the runtime: its message, code and name. */
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

  /** Returns the name of the error, such as "InvalidArgument". */
  public String getErrorName() {
    return name;
  }
}
