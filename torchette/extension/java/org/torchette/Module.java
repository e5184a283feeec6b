// SPDX-License-Identifier: BSD-3-Clause
// Runs the methods of a .pte file with EValues. torchette_jni.c implements the native methods. Both files use the same layout
// of a description: kind, integer, bits of the double, bytes, dtype, number of dimensions, sizes.
package org.torchette;

import java.nio.ByteBuffer;
import java.util.Arrays;

/**
 * An open program. Its methods are synchronized. Close the module after use, because its memory is outside the Java heap. A
 * closed module throws IllegalStateException.
 */
public final class Module implements java.io.Closeable {
  public static final int LOAD_MODE_FILE = 0, LOAD_MODE_MMAP = 1;

  private static final int HEAD = 6, KIND = 0, INTEGER = 1, NUMBER = 2, BYTES = 3, DTYPE = 4, DIM = 5;
  private static final int INPUTS = 0, OUTPUTS = 1, RESULTS = 2;

  static {
    System.loadLibrary("torchette_jni");
  }

  private long handle; // 0: closed

  private Module(long handle) {
    this.handle = handle;
  }

  /** Opens a program by mapping the file. Throws TorchetteException if the file is not a valid program. */
  public static Module load(String modelPath) {
    return load(modelPath, LOAD_MODE_MMAP);
  }

  /** Opens a program with LOAD_MODE_FILE or LOAD_MODE_MMAP. */
  public static Module load(String modelPath, int loadMode) {
    return load(modelPath, loadMode, 0);
  }

  /**
   * Opens a program.
   *
   * @param modelPath the .pte file
   * @param loadMode LOAD_MODE_FILE or LOAD_MODE_MMAP
   * @param numThreads number of threads of a method; 0 means one for each physical core
   * @param dataPaths .ptd files with weights
   */
  public static Module load(String modelPath, int loadMode, int numThreads, String... dataPaths) {
    if (numThreads < 0) throw new IllegalArgumentException("numThreads is " + numThreads + ", expected 0 or greater");
    Module module = new Module(open(modelPath, loadMode));
    try {
      for (String path : dataPaths) addData(module.handle, path, loadMode);
      if (numThreads != 0) setThreads(module.handle, numThreads);
    } catch (RuntimeException error) {
      module.close();
      throw error;
    }
    return module;
  }

  /** Runs the method "forward". There must be a value for each input. */
  public EValue[] forward(EValue... inputs) {
    return execute("forward", inputs);
  }

  /**
   * Runs a method.
   *
   * @param methodName a name of getMethods()
   * @param inputs a value for each input of the method
   * @return a value for each output; tensors are copies
   * @throws TorchetteException if the inputs do not match the method or the execution fails
   */
  public synchronized EValue[] execute(String methodName, EValue... inputs) {
    long[][] values = new long[inputs.length][];
    ByteBuffer[] data = new ByteBuffer[inputs.length];
    for (int i = 0; i < inputs.length; ++i) {
      EValue value = inputs[i];
      Tensor tensor = value.isTensor() ? value.toTensor() : null;
      long[] shape = tensor == null ? new long[0] : tensor.shape();
      long[] to = values[i] = new long[HEAD + shape.length];
      to[KIND] = value.kind;
      if (value.isInt()) to[INTEGER] = value.toInt();
      if (value.isBool()) to[INTEGER] = value.toBool() ? 1 : 0;
      if (value.isDouble()) to[NUMBER] = Double.doubleToRawLongBits(value.toDouble());
      if (tensor == null) continue;
      data[i] = tensor.bytes;
      to[BYTES] = tensor.bytes.capacity();
      to[DTYPE] = tensor.dtype().code;
      to[DIM] = shape.length;
      System.arraycopy(shape, 0, to, HEAD, shape.length);
    }
    run(open(), methodName, values, data);
    EValue[] outputs = new EValue[count(handle, methodName, OUTPUTS)];
    for (int i = 0; i < outputs.length; ++i) outputs[i] = output(methodName, i);
    return outputs;
  }

  private EValue output(String method, int index) {
    long[] value = describe(handle, method, RESULTS, index);
    switch ((int) value[KIND]) {
      case EValue.TENSOR:
        long[] shape = Arrays.copyOfRange(value, HEAD, HEAD + (int) value[DIM]);
        Tensor tensor = Tensor.allocate(DType.of(value[DTYPE]), shape, Tensor.numel(shape));
        copy(handle, method, index, tensor.bytes);
        return EValue.from(tensor);
      case EValue.INT:
        return EValue.from(value[INTEGER]);
      case EValue.BOOL:
        return EValue.from(value[INTEGER] != 0);
      case EValue.DOUBLE:
        return EValue.from(Double.longBitsToDouble(value[NUMBER]));
      default:
        return EValue.other((int) value[KIND]);
    }
  }

  /** Allocates memory for a method and loads it. execute() does so if the method is not loaded. */
  public synchronized void loadMethod(String methodName) {
    load(open(), methodName);
  }

  /** Resets mutable state to the values that it had when the method was loaded. */
  public synchronized void resetMethod(String methodName) {
    reset(open(), methodName);
  }

  /** Returns the names of the methods. */
  public synchronized String[] getMethods() {
    return methods(open());
  }

  /** Describes the inputs and outputs of a method. */
  public synchronized MethodMetadata getMethodMetadata(String methodName) {
    return new MethodMetadata(methodName, infos(methodName, INPUTS), infos(methodName, OUTPUTS));
  }

  private MethodMetadata.Info[] infos(String method, int which) {
    MethodMetadata.Info[] infos = new MethodMetadata.Info[count(open(), method, which)];
    for (int i = 0; i < infos.length; ++i) {
      long[] value = describe(handle, method, which, i);
      boolean tensor = value[KIND] == EValue.TENSOR;
      long[] shape = Arrays.copyOfRange(value, HEAD, HEAD + (int) value[DIM]);
      infos[i] = new MethodMetadata.Info((int) value[KIND], tensor ? DType.of(value[DTYPE]) : null, shape);
    }
    return infos;
  }

  /** Frees all memory. Further calls have no effect. */
  public synchronized void destroy() {
    long old = handle;
    handle = 0;
    if (old != 0) free(old);
  }

  @Override
  public void close() {
    destroy();
  }

  private long open() {
    if (handle == 0) throw new IllegalStateException("the module is closed");
    return handle;
  }

  private static native long open(String path, int mmap);

  private static native void free(long module);

  private static native void addData(long module, String path, int mmap);

  private static native void setThreads(long module, int count);

  private static native String[] methods(long module);

  private static native int count(long module, String method, int which);

  private static native long[] describe(long module, String method, int which, int index);

  private static native void load(long module, String method);

  private static native void reset(long module, String method);

  private static native void run(long module, String method, long[][] values, ByteBuffer[] data);

  private static native void copy(long module, String method, int index, ByteBuffer to);
}
