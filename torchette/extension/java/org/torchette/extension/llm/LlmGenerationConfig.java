// SPDX-License-Identifier: BSD-3-Clause
package org.torchette.extension.llm;

/** How a text goes on. What ExecuTorch's has not is an object of JSON with the members of GenerationConfig (docs/llm-cpp.md). */
public final class LlmGenerationConfig {
  private final Builder given;

  private LlmGenerationConfig(Builder given) {
    this.given = given;
  }

  public static Builder create() {
    return new Builder();
  }

  public boolean isEcho() {
    return given.echo;
  }

  public int getMaxNewTokens() {
    return given.maxNewTokens;
  }

  public boolean isWarming() {
    return given.warming;
  }

  public int getSeqLen() {
    return given.seqLen;
  }

  public float getTemperature() {
    return given.temperature;
  }

  public int getNumBos() {
    return given.numBos;
  }

  public int getNumEos() {
    return given.numEos;
  }

  public String getJson() {
    return given.json;
  }

  public static final class Builder {
    private boolean echo = true, warming;
    private int maxNewTokens = -1, seqLen = -1, numBos, numEos;
    private float temperature = 0.8f;
    private String json = "{}";

    Builder() {}

    /** The prompt is the first piece. */
    public Builder echo(boolean echo) {
      this.echo = echo;
      return this;
    }

    /** -1: as many as there is room for. */
    public Builder maxNewTokens(int maxNewTokens) {
      this.maxNewTokens = maxNewTokens;
      return this;
    }

    /** Pieces are not given out. */
    public Builder warming(boolean warming) {
      this.warming = warming;
      return this;
    }

    /** Prompt and answer together; -1: the model's context. */
    public Builder seqLen(int seqLen) {
      this.seqLen = seqLen;
      return this;
    }

    /** 0: always the likeliest token. */
    public Builder temperature(float temperature) {
      this.temperature = temperature;
      return this;
    }

    public Builder numBos(int numBos) {
      this.numBos = numBos;
      return this;
    }

    public Builder numEos(int numEos) {
      this.numEos = numEos;
      return this;
    }

    /** Such as {"top_p": 0.9, "seed": 1, "stop": ["\n"], "grammar": "root ::= ..."}; of two values this one counts. */
    public Builder json(String json) {
      this.json = json;
      return this;
    }

    public LlmGenerationConfig build() {
      Builder copy = new Builder();
      copy.echo = echo;
      copy.warming = warming;
      copy.maxNewTokens = maxNewTokens;
      copy.seqLen = seqLen;
      copy.numBos = numBos;
      copy.numEos = numEos;
      copy.temperature = temperature;
      copy.json = json;
      return new LlmGenerationConfig(copy);
    }
  }
}
