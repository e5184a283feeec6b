// SPDX-License-Identifier: BSD-3-Clause
package org.torchette;

/** The dtype of a tensor, with torch's codes. */
public enum DType {
  UINT8(0, 1), INT8(1, 1), INT16(2, 2), INT32(3, 4), INT64(4, 8), HALF(5, 2), FLOAT(6, 4), DOUBLE(7, 8), BOOL(11, 1),
  BFLOAT16(15, 2), UINT16(27, 2), UINT32(28, 4), UINT64(29, 8);

  final int code;
  final int bytes;

  DType(int code, int bytes) {
    this.code = code;
    this.bytes = bytes;
  }

  static DType of(long code) {
    for (DType dtype : values()) if (dtype.code == code) return dtype;
    throw new IllegalArgumentException("unknown dtype code " + code);
  }
}
