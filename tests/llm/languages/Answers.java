// SPDX-License-Identifier: BSD-3-Clause
// Like answers.cpp, without steps. In: a model as the argument and a request per line. Out: a JSON object per line.
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.torchette.extension.llm.LlmCallback;
import org.torchette.extension.llm.LlmGenerationConfig;
import org.torchette.extension.llm.LlmModule;

final class Answers {
  private static final class Heard implements LlmCallback {
    final StringBuilder text = new StringBuilder();
    String stats = "{}", message = "";
    int error;

    @Override
    public void onResult(String result) {
      text.append(result);
    }

    @Override
    public void onStats(String stats) {
      this.stats = stats;
    }

    @Override
    public void onError(int code, String message) {
      error = code;
      this.message = message;
    }
  }

  /** The strings of a JSON list of strings in ASCII. */
  private static List<String> strings(String line) {
    List<String> found = new ArrayList<>();
    StringBuilder text = null;
    for (int i = 0; i < line.length(); i++) {
      char c = line.charAt(i);
      if (text == null) {
        if (c == '"') text = new StringBuilder();
      } else if (c == '"') {
        found.add(text.toString());
        text = null;
      } else if (c != '\\') {
        text.append(c);
      } else {
        c = line.charAt(++i);
        int simple = "bfnrt".indexOf(c);
        if (c == 'u') text.append((char) Integer.parseInt(line.substring(i + 1, i + 5), 16));
        else text.append(simple < 0 ? c : "\b\f\n\r\t".charAt(simple));
        if (c == 'u') i += 4;
      }
    }
    return found;
  }

  private static String quoted(String text) {
    StringBuilder out = new StringBuilder("\"");
    for (char c : text.toCharArray()) out.append(String.format("\\u%04x", (int) c));
    return out.append('"').toString();
  }

  public static void main(String[] arguments) throws IOException {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
    try (LlmModule module = new LlmModule(arguments[0], null, -1)) {
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        List<String> request = strings(line);
        LlmGenerationConfig config = LlmGenerationConfig.create().json(request.get(4)).build();
        Heard heard = new Heard();
        String thrown = "";
        int error = 0;
        module.resetContext();
        try {
          error = request.get(1).equals("messages") ? module.chat(request.get(2), request.get(3), config, heard)
              : module.generate(request.get(2), config, heard);
        } catch (IllegalArgumentException exception) {
          thrown = exception.getMessage();
        }
        if (error != heard.error) throw new AssertionError(error + " and " + heard.error);
        System.out.println("{\"error\":" + error + ",\"message\":" + quoted(heard.message) + ",\"thrown\":" + quoted(thrown) + ",\"text\":"
            + quoted(heard.text.toString()) + ",\"stats\":" + heard.stats + "}");
      }
    }
  }
}
