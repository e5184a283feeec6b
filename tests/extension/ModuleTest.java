// SPDX-License-Identifier: BSD-3-Clause
// In: counter.pte, its data file, rows.pte. Out: a line with the error of each invalid call. A failed check ends the program.
import java.nio.ByteBuffer;
import java.util.Arrays;
import org.torchette.DType;
import org.torchette.EValue;
import org.torchette.Module;
import org.torchette.Tensor;
import org.torchette.TorchetteException;

public final class ModuleTest {
  interface Work {
    void run();
  }

  static void printError(String what, Work work) {
    try {
      work.run();
      System.out.println(what + ": nothing");
    } catch (TorchetteException error) {
      System.out.println(what + ": " + error.getErrorName() + "|" + error.getMessage());
    } catch (RuntimeException error) {
      System.out.println(what + ": " + error.getClass().getSimpleName() + "|" + error.getMessage());
    }
  }

  static void check(boolean truth, String what) {
    if (!truth) throw new AssertionError(what);
  }

  public static void main(String[] arguments) throws InterruptedException {
    float[] numbers = {-1, -0.5f, 0, 0.5f, 1, 2, 3, 4};
    EValue x = EValue.from(Tensor.fromBlob(numbers, new long[] {2, 4}));
    printError("file", () -> Module.load("none.pte"));
    printError("null", () -> Module.load(null));
    printError("zero", () -> Module.load(arguments[0] + "\u0000.pte"));
    printError("threads", () -> Module.load(arguments[0], Module.LOAD_MODE_MMAP, -1));
    printError("data", () -> Module.load(arguments[0], Module.LOAD_MODE_FILE, 1, "none.ptd"));
    printError("shape", () -> Tensor.fromBlob(numbers, new long[] {3, 3}));
    printError("negative", () -> Tensor.zeros(new long[] {-1}, DType.FLOAT));
    printError("heap", () -> Tensor.fromBlob(ByteBuffer.allocate(32), new long[] {8}, DType.FLOAT));

    Module module = Module.load(arguments[0], Module.LOAD_MODE_MMAP, 1, arguments[1]);
    check(Arrays.equals(module.getMethods(), new String[] {"forward"}), "methods");
    check(module.getMethodMetadata("forward").getInputs()[0].toString().equals("FLOAT[2, 4]"), "metadata");
    printError("method", () -> module.loadMethod("backward"));
    printError("count", () -> module.forward());
    printError("kind", () -> module.forward(EValue.from(3)));
    module.forward(x);
    module.resetMethod("forward");
    printError("none", () -> module.forward(EValue.optionalNone())); // must not read the memory of the last input
    printError("dtype", () -> module.forward(EValue.from(Tensor.fromBlob(new int[8], new long[] {2, 4}))));
    printError("sizes", () -> module.forward(EValue.from(Tensor.fromBlob(numbers, new long[] {4, 2}))));
    long[] deep = new long[20];
    Arrays.fill(deep, 1);
    printError("rank", () -> module.forward(EValue.from(Tensor.zeros(deep, DType.FLOAT))));

    EValue[] first = module.forward(x), second = module.forward(x);
    int last = first.length - 1;
    check(Arrays.equals(first[last - 1].toTensor().getDataAsFloatArray(), second[last - 1].toTensor().getDataAsFloatArray()), "same");
    check(first[last].toTensor().getDataAsFloatArray()[0] == 6, "an output is a separate copy");
    check(second[last].toTensor().getDataAsFloatArray()[0] == 7, "state");
    module.resetMethod("forward");
    check(module.forward(x)[last].toTensor().getDataAsFloatArray()[0] == 6, "reset");
    printError("cast", () -> first[0].toInt());
    printError("type", () -> first[0].toTensor().getDataAsLongArray());
    System.out.println("scores: " + Arrays.toString(first[last - 1].toTensor().getDataAsFloatArray()));

    try (Module numbersModule = Module.load(arguments[2])) { // dim order and integers
      EValue[] out = numbersModule.forward(EValue.from(Tensor.fromBlob(numbers, new long[] {1, 2, 2, 2})), EValue.from(3L));
      check(Arrays.equals(out[0].toTensor().getDataAsFloatArray(), numbers), "row-major order");
      check(out[1].toInt() == 3 && out[1].isInt(), "number");
      printError("fixed", () -> numbersModule.forward(EValue.from(Tensor.fromBlob(numbers, new long[] {1, 2, 2, 2})), EValue.from(4L)));
    }

    // Characters above U+FFFF, which JNI's modified UTF-8 encodes as two surrogates.
    String folder = new java.io.File(arguments[0]).getParent();
    try (Module copy = Module.load(folder + "/m\ud83d\ude00del.pte", Module.LOAD_MODE_MMAP, 1, arguments[1])) {
      check(copy.getMethods().length == 1, "a path with an emoji");
      copy.loadMethod("\ud83d\ude00\u00e9\ud83d");
    } catch (TorchetteException error) {
      check(error.getMessage().contains("there is no method \ud83d\ude00\u00e9\ufffd"), error.getMessage());
    }
    printError("emoji", () -> Module.load("\ud83d\ude00/none.pte"));

    // Close the module while other threads execute it: each call runs or throws that the module is closed.
    Thread[] threads = new Thread[4];
    for (int i = 0; i < threads.length; ++i) {
      threads[i] = new Thread(() -> {
        try {
          while (true) module.forward(x);
        } catch (IllegalStateException closed) {
          check(closed.getMessage().equals("the module is closed"), closed.getMessage());
        }
      });
      threads[i].start();
    }
    Thread.sleep(50);
    module.close();
    module.close();
    for (Thread thread : threads) thread.join();
    printError("closed", () -> module.forward(x));
    printError("closed methods", module::getMethods);
    printError("closed metadata", () -> module.getMethodMetadata("forward"));
    check(first[last].toTensor().getDataAsFloatArray()[0] == 6, "outputs outlive the module");
  }
}
