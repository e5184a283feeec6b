// SPDX-License-Identifier: BSD-3-Clause
// In: elements and sizes. Out: memory outside the Java heap that the runtime reads in place.
package org.torchette;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.util.Arrays;

/** A tensor with elements in row-major order. The elements of a direct buffer are used in place; arrays are copied. */
public final class Tensor {
  final ByteBuffer bytes; // a direct buffer in native byte order that contains exactly the elements
  private final DType dtype;
  private final long[] shape;

  private Tensor(ByteBuffer bytes, DType dtype, long[] shape) {
    this.bytes = bytes;
    this.dtype = dtype;
    this.shape = shape.clone();
    if (numel(shape) * dtype.bytes != bytes.capacity())
      throw new IllegalArgumentException(
          bytes.capacity() / dtype.bytes + " elements do not match a tensor of shape " + Arrays.toString(shape));
  }

  /** Creates a tensor of any dtype that uses the bytes of a direct buffer. */
  public static Tensor fromBlob(ByteBuffer data, long[] shape, DType dtype) {
    if (!data.isDirect()) throw new IllegalArgumentException("the buffer of a tensor must be direct: use ByteBuffer.allocateDirect()");
    return new Tensor(data.slice().order(ByteOrder.nativeOrder()), dtype, shape);
  }

  /** Creates a tensor from a copy of an array. The dtype is that of the array's elements. */
  public static Tensor fromBlob(float[] data, long[] shape) {
    Tensor tensor = allocate(DType.FLOAT, shape, data.length);
    tensor.bytes.asFloatBuffer().put(data);
    return tensor;
  }

  public static Tensor fromBlob(double[] data, long[] shape) {
    Tensor tensor = allocate(DType.DOUBLE, shape, data.length);
    tensor.bytes.asDoubleBuffer().put(data);
    return tensor;
  }

  public static Tensor fromBlob(int[] data, long[] shape) {
    Tensor tensor = allocate(DType.INT32, shape, data.length);
    tensor.bytes.asIntBuffer().put(data);
    return tensor;
  }

  public static Tensor fromBlob(long[] data, long[] shape) {
    Tensor tensor = allocate(DType.INT64, shape, data.length);
    tensor.bytes.asLongBuffer().put(data);
    return tensor;
  }

  public static Tensor fromBlob(byte[] data, long[] shape) {
    return ofBytes(DType.INT8, data, shape);
  }

  /** Creates a UINT8 tensor from a copy of an array. */
  public static Tensor fromBlobUnsigned(byte[] data, long[] shape) {
    return ofBytes(DType.UINT8, data, shape);
  }

  public static Tensor zeros(long[] shape, DType dtype) {
    return allocate(dtype, shape, numel(shape));
  }

  public static Tensor ones(long[] shape, DType dtype) {
    if (dtype != DType.FLOAT) throw new IllegalArgumentException("ones() supports only FLOAT, got " + dtype);
    float[] data = new float[(int) numel(shape)];
    Arrays.fill(data, 1);
    return fromBlob(data, shape);
  }

  public DType dtype() {
    return dtype;
  }

  public long[] shape() {
    return shape.clone();
  }

  public long numel() {
    return numel(shape);
  }

  /** Returns the number of elements of a tensor with these sizes. */
  public static long numel(long[] shape) {
    long count = 1;
    for (long size : shape) {
      if (size < 0) throw new IllegalArgumentException("a tensor cannot have the sizes " + Arrays.toString(shape));
      count = Math.multiplyExact(count, size);
    }
    return count;
  }

  /** Returns a copy of the elements. Throws IllegalStateException if the dtype is not FLOAT; the methods below require their dtype. */
  public float[] getDataAsFloatArray() {
    FloatBuffer from = view(DType.FLOAT).asFloatBuffer();
    float[] data = new float[from.remaining()];
    from.get(data);
    return data;
  }

  public double[] getDataAsDoubleArray() {
    DoubleBuffer from = view(DType.DOUBLE).asDoubleBuffer();
    double[] data = new double[from.remaining()];
    from.get(data);
    return data;
  }

  public int[] getDataAsIntArray() {
    IntBuffer from = view(DType.INT32).asIntBuffer();
    int[] data = new int[from.remaining()];
    from.get(data);
    return data;
  }

  public long[] getDataAsLongArray() {
    LongBuffer from = view(DType.INT64).asLongBuffer();
    long[] data = new long[from.remaining()];
    from.get(data);
    return data;
  }

  public byte[] getDataAsByteArray() {
    return copied(DType.INT8);
  }

  public byte[] getDataAsUnsignedByteArray() {
    return copied(DType.UINT8);
  }

  /** Returns the elements without a copy, in native byte order. */
  public ByteBuffer getRawDataBuffer() {
    return bytes.duplicate().order(ByteOrder.nativeOrder());
  }

  @Override
  public String toString() {
    return "Tensor(" + Arrays.toString(shape) + ", dtype=" + dtype + ")";
  }

  private static Tensor ofBytes(DType dtype, byte[] data, long[] shape) {
    Tensor tensor = allocate(dtype, shape, data.length);
    tensor.getRawDataBuffer().put(data);
    return tensor;
  }

  private byte[] copied(DType expected) {
    ByteBuffer from = view(expected);
    byte[] data = new byte[from.remaining()];
    from.get(data);
    return data;
  }

  private ByteBuffer view(DType expected) {
    if (dtype != expected) throw new IllegalStateException("the tensor is " + dtype + ", not " + expected);
    return getRawDataBuffer();
  }

  static Tensor allocate(DType dtype, long[] shape, long count) {
    return new Tensor(direct(Math.multiplyExact(count, (long) dtype.bytes)), dtype, shape);
  }

  private static ByteBuffer direct(long size) {
    return ByteBuffer.allocateDirect(Math.toIntExact(size)).order(ByteOrder.nativeOrder());
  }
}
