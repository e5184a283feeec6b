// SPDX-License-Identifier: BSD-3-Clause
// In: a language model and a prompt. Out: the results and errors of an LlmModule, one per line.
import java.util.ArrayList;
import java.util.List;
import org.torchette.extension.llm.LlmCallback;
import org.torchette.extension.llm.LlmGenerationConfig;
import org.torchette.extension.llm.LlmModule;

final class LlmModuleTest {
  private static final class Heard implements LlmCallback {
    final StringBuilder text = new StringBuilder();
    String stats = "", error = "";
    LlmModule stops;

    @Override
    public void onResult(String result) {
      text.append(result);
      if (stops != null) stops.stop();
    }

    @Override
    public void onStats(String stats) {
      this.stats = stats;
    }

    @Override
    public void onError(int code, String message) {
      error = code + " " + message;
    }
  }

  private static LlmGenerationConfig.Builder config() {
    return LlmGenerationConfig.create().temperature(0).maxNewTokens(12).echo(false).json("{\"add_special_tokens\": true}");
  }

  public static void main(String[] arguments) {
    List<String> lines = new ArrayList<>();
    LlmModule module = new LlmModule(arguments[0], null, -1);
    Heard heard = new Heard();
    heard.stops = module;
    lines.add("stopped: " + module.generate(arguments[1], config().maxNewTokens(50).build(), heard) + heard.stats);
    module.resetContext();
    heard = new Heard();
    lines.add("template: " + module.chat("[{\"role\": \"user\", \"content\": \"x\"}]", config().build(), heard) + " " + heard.error);
    heard = new Heard();
    int refused = module.generate("x", config().set("\ud83d\ude00", 1).build(), heard);
    Heard outside = new Heard();
    String emoji = arguments[3] + "/m\ud83d\ude00del.pte"; // not an argument: Java decodes them by the locale
    try (LlmModule copy = new LlmModule(emoji, null, -1); LlmModule missing = new LlmModule("\ud83d\ude00none.pte", null, -1)) {
      lines.add("emoji: " + copy.load() + " " + refused + " " + heard.error);
      copy.setAdapter(null);
      lines.add("path: " + copy.saveState(emoji + ".state") + " " + missing.generate("x", config().build(), outside) + " " + outside.error);
      heard = new Heard();
      LlmGenerationConfig set = config().maxNewTokens(9).set("seed", 3).set("temperature", 2).set("stop", new String[] {"never"})
          .set("logitBias", java.util.Collections.singletonMap(599, Double.NEGATIVE_INFINITY)).build();
      lines.add("set: " + copy.generate(arguments[1], set, heard) + heard.text);
    }
    LlmGenerationConfig plain = LlmGenerationConfig.create().build();
    lines.add("defaults: " + plain.isEcho() + " " + plain.getMaxNewTokens() + " " + plain.isWarming() + " " + plain.getSeqLen() + " "
        + plain.getTemperature() + " " + plain.getNumBos() + " " + plain.getNumEos());
    lines.add("prefill: " + module.prefillPrompt("more"));
    lines.add("media: " + module.prefillImages(new int[12], 2, 2, 3) + " " + module.prefillNormalizedImage(new float[12], 2, 2, 3) + " "
        + module.prefillAudio(new float[6], 1, 2, 3) + " " + module.prefillRawAudio(new float[9]) + " " + module.setAdapter("none"));
    try {
      module.prefillAudio(new float[6], 1, 2, 4);
    } catch (IllegalArgumentException error) {
      lines.add("sizes: " + error.getMessage());
    }
    heard = new Heard();
    module.resetContext();
    module.generate(arguments[1], config().build(), heard);
    String path = arguments[2];
    int saved = module.saveState(path);
    module.resetContext();
    Heard more = new Heard();
    lines.add("state: " + saved + " " + module.loadState(path) + " " + module.loadState(arguments[0]) + " "
        + module.generate(" so", config().build(), more) + more.text);
    for (String zero : new String[] {"load", "state", "adapter", "prefill"}) {
      try (LlmModule bad = new LlmModule(zero.equals("load") ? "a\u0000b" : arguments[0], null, -1)) {
        int code = zero.equals("load") ? bad.load() : zero.equals("state") ? bad.saveState(arguments[2] + "\u0000")
            : zero.equals("adapter") ? bad.setAdapter("\u0000") : bad.prefillPrompt("\u0000");
        lines.add("zero: " + code);
      } catch (IllegalArgumentException error) {
        lines.add(zero + " with zero: " + error.getMessage());
      }
    }
    try {
      module.generate("x", config().build(), piece -> {
        throw new IllegalArgumentException("mine");
      });
    } catch (IllegalArgumentException error) {
      lines.add("thrown: " + error.getMessage());
    }
    module.close();
    module.close();
    try {
      module.load();
    } catch (IllegalStateException error) {
      lines.add("closed: " + error.getMessage());
    }
    try (LlmModule none = new LlmModule("nothing.pte", null, 0)) {
      lines.add("none: " + none.load());
    }
    System.out.print(String.join("\n", lines).replace("\u0000", ""));
  }
}
