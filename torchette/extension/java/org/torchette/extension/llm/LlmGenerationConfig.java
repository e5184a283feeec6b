// SPDX-License-Identifier: BSD-3-Clause
package org.torchette.extension.llm;

import java.lang.reflect.Array;
import java.util.LinkedHashMap;
import java.util.Map;

/**
 * The options of a generation. The builder has the methods of ExecuTorch's builder, which are named after options. {@link Builder#set}
 * accepts every option (docs/llm-cpp.md). The runtime checks names and values when the generation starts.
 */
public final class LlmGenerationConfig {
  private final Map<String, Object> values;
  private final String json;

  private LlmGenerationConfig(Builder builder) {
    values = new LinkedHashMap<>(builder.values);
    json = builder.json;
  }

  public static Builder create() {
    return new Builder();
  }

  public boolean isEcho() {
    return get("echo", true);
  }

  public int getMaxNewTokens() {
    return get("maxNewTokens", -1);
  }

  public boolean isWarming() {
    return get("warming", false);
  }

  public int getSeqLen() {
    return get("seqLen", -1);
  }

  public float getTemperature() {
    return get("temperature", 0.8f);
  }

  public int getNumBos() {
    return get("numBos", 0);
  }

  public int getNumEos() {
    return get("numEos", 0);
  }

  /** Returns the options that were set, as a JSON object. */
  public String getJson() {
    return getJson(-1);
  }

  /** Returns the options as a JSON object. `temperature` replaces the temperature of this configuration unless it is -1. */
  String getJson(float temperature) {
    Map<String, Object> all = new LinkedHashMap<>(values);
    if (temperature != -1) all.put("temperature", temperature);
    String members = text(all), moreMembers = json.substring(1).trim();
    return all.isEmpty() ? json : members.substring(0, members.length() - 1) + (moreMembers.startsWith("}") ? "" : ",") + moreMembers;
  }

  @SuppressWarnings("unchecked") // the builder sets values of these types under these names
  private <T> T get(String name, T defaultValue) {
    Object value = values.get(name);
    return value != null && value.getClass() == defaultValue.getClass() ? (T) value : defaultValue;
  }

  /** Returns a value as JSON. */
  private static String text(Object value) {
    if (value == null || value instanceof Boolean) return String.valueOf(value);
    if (value instanceof Number) {
      double number = ((Number) value).doubleValue();
      if (Double.isNaN(number)) throw new IllegalArgumentException("the value of an option is NaN");
      return Double.isInfinite(number) ? (number < 0 ? "-1e300" : "1e300") : value.toString(); // JSON has no infinity
    }
    if (value instanceof Map) {
      StringBuilder members = new StringBuilder();
      for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet())
        members.append(members.length() == 0 ? "" : ",").append(quoted(String.valueOf(entry.getKey()))).append(':').append(text(entry.getValue()));
      return "{" + members + "}";
    }
    StringBuilder items = new StringBuilder();
    if (value instanceof Iterable) {
      for (Object item : (Iterable<?>) value) items.append(items.length() == 0 ? "" : ",").append(text(item));
      return "[" + items + "]";
    }
    if (value.getClass().isArray()) {
      for (int i = 0; i < Array.getLength(value); i++) items.append(i == 0 ? "" : ",").append(text(Array.get(value, i)));
      return "[" + items + "]";
    }
    return quoted(value.toString());
  }

  private static String quoted(String text) {
    StringBuilder out = new StringBuilder("\"");
    for (char c : text.toCharArray()) {
      if (c == '"' || c == '\\') out.append('\\').append(c);
      else if (c < ' ') out.append(String.format("\\u%04x", (int) c));
      else out.append(c);
    }
    return out.append('"').toString();
  }

  public static final class Builder {
    private final Map<String, Object> values = new LinkedHashMap<>();
    private String json = "{}";

    Builder() {}

    /**
     * Sets an option by its name, such as topP. Its value is a Boolean, a Number, a String, an array or an Iterable of strings, or a
     * Map. The aliases of an option and its snake case name, such as top_p, select the same option.
     */
    public Builder set(String name, Object value) {
      values.put(name, value);
      return this;
    }

    /** Sets whether the first piece is the prompt. */
    public Builder echo(boolean echo) {
      return set("echo", echo);
    }

    /** Sets the maximum number of generated tokens; -1 generates until the context is full. */
    public Builder maxNewTokens(int maxNewTokens) {
      return set("maxNewTokens", maxNewTokens);
    }

    /** Sets whether the generated text is discarded. */
    public Builder warming(boolean warming) {
      return set("warming", warming);
    }

    /** Sets the maximum number of tokens of the prompt and the generated text; -1 means the context length of the model. */
    public Builder seqLen(int seqLen) {
      return set("seqLen", seqLen);
    }

    /** Sets the divisor of the logits for sampling; 0 selects the most probable token. */
    public Builder temperature(float temperature) {
      return set("temperature", temperature);
    }

    /** Sets the number of BOS tokens before the prompt. */
    public Builder numBos(int numBos) {
      return set("numBos", numBos);
    }

    /** Sets the number of EOS tokens after the prompt. */
    public Builder numEos(int numEos) {
      return set("numEos", numEos);
    }

    /** Sets options as a JSON object, such as {"topP": 0.9, "seed": 1}. An option must not be set both here and by another method. */
    public Builder json(String json) {
      this.json = json.trim();
      if (!this.json.startsWith("{")) throw new IllegalArgumentException("the options must be a JSON object, got " + json);
      return this;
    }

    public LlmGenerationConfig build() {
      return new LlmGenerationConfig(this);
    }
  }
}
