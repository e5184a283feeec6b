// SPDX-License-Identifier: BSD-3-Clause
// In: digits.pte and an image of 8 x 8 floats. Out: its digit and the probability.
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.torchette.DType;
import org.torchette.EValue;
import org.torchette.Module;
import org.torchette.Tensor;

public final class Digits {
  public static void main(String[] arguments) throws java.io.IOException {
    byte[] bytes = Files.readAllBytes(Paths.get(arguments[1]));
    ByteBuffer picture = ByteBuffer.allocateDirect(bytes.length).order(ByteOrder.LITTLE_ENDIAN);
    picture.put(bytes).rewind();
    try (Module module = Module.load(arguments[0])) {
      Tensor input = Tensor.fromBlob(picture, new long[] {1, 64}, DType.FLOAT); // not copied
      float[] scores = module.forward(EValue.from(input))[0].toTensor().getDataAsFloatArray();
      int best = 0;
      for (int digit = 1; digit < scores.length; ++digit) if (scores[digit] > scores[best]) best = digit;
      System.out.printf(java.util.Locale.ROOT, "%d %.4f%n", best, scores[best]);
    }
  }
}
