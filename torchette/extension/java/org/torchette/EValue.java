// SPDX-License-Identifier: BSD-3-Clause
package org.torchette;

/** An input or output of a method: a tensor, an integer, a double, a boolean, or None. */
public final class EValue {
  static final int NONE = 0, TENSOR = 1, STRING = 2, DOUBLE = 3, INT = 4, BOOL = 5;
  private static final String[] KINDS = {"None", "Tensor", "String", "Double", "Int", "Bool"};

  final int kind;
  private final Object data;

  private EValue(int kind, Object data) {
    this.kind = kind;
    this.data = data;
  }

  public static EValue from(Tensor tensor) {
    return new EValue(TENSOR, java.util.Objects.requireNonNull(tensor));
  }

  public static EValue from(long number) {
    return new EValue(INT, number);
  }

  public static EValue from(double number) {
    return new EValue(DOUBLE, number);
  }

  public static EValue from(boolean truth) {
    return new EValue(BOOL, truth);
  }

  /** Returns None, for an input that the export has fixed. */
  public static EValue optionalNone() {
    return new EValue(NONE, null);
  }

  static EValue other(int kind) {
    return new EValue(kind, null);
  }

  public boolean isNone() {
    return kind == NONE;
  }

  public boolean isTensor() {
    return kind == TENSOR;
  }

  public boolean isInt() {
    return kind == INT;
  }

  public boolean isDouble() {
    return kind == DOUBLE;
  }

  public boolean isBool() {
    return kind == BOOL;
  }

  public boolean isString() {
    return kind == STRING;
  }

  /** Returns the tensor. Throws IllegalStateException if the value has another kind, like the methods below. */
  public Tensor toTensor() {
    return (Tensor) as(TENSOR);
  }

  public long toInt() {
    return (Long) as(INT);
  }

  public double toDouble() {
    return (Double) as(DOUBLE);
  }

  public boolean toBool() {
    return (Boolean) as(BOOL);
  }

  @Override
  public String toString() {
    return "EValue(" + name(kind) + (data == null ? "" : " " + data) + ")";
  }

  private static String name(int kind) {
    return kind >= 0 && kind < KINDS.length ? KINDS[kind] : "kind " + kind;
  }

  private Object as(int expected) {
    if (kind != expected) throw new IllegalStateException("the value is " + name(kind) + ", not " + name(expected));
    return data;
  }
}
