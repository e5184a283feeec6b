// SPDX-License-Identifier: BSD-3-Clause
package org.torchette;

import java.util.Arrays;

/** Describes the inputs and outputs of a method without loading it. */
public final class MethodMetadata {
  /** The kind of a value, with the codes of EValue. For a tensor, also its dtype and sizes, which are upper bounds. */
  public static final class Info {
    public final int kind;
    public final DType dtype;
    public final long[] shape;

    Info(int kind, DType dtype, long[] shape) {
      this.kind = kind;
      this.dtype = dtype;
      this.shape = shape;
    }

    @Override
    public String toString() {
      return dtype == null ? "kind " + kind : dtype + Arrays.toString(shape);
    }
  }

  private final String name;
  private final Info[] inputs;
  private final Info[] outputs;

  MethodMetadata(String name, Info[] inputs, Info[] outputs) {
    this.name = name;
    this.inputs = inputs;
    this.outputs = outputs;
  }

  public String getName() {
    return name;
  }

  public Info[] getInputs() {
    return inputs.clone();
  }

  public Info[] getOutputs() {
    return outputs.clone();
  }
}
