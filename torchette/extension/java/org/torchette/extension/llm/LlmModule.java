// SPDX-License-Identifier: BSD-3-Clause
// Generates text with the .pte file of a language model from text, images and audio. torchette_llm_jni.c has the native methods.
package org.torchette.extension.llm;

/**
 * A conversation with a language model. Each prompt continues the conversation. The methods are synchronized, except stop().
 * Close the module after use, because its memory is outside the Java heap.
 */
public final class LlmModule implements AutoCloseable {
  public static final int MODEL_TYPE_TEXT = 1;
  /** The two constants are equivalent: the file determines the inputs of the model. */
  public static final int MODEL_TYPE_TEXT_VISION = 2, MODEL_TYPE_MULTIMODAL = 2;

  static {
    System.loadLibrary("torchette_llm_jni");
  }

  private final String modulePath, tokenizerPath;
  private final float temperature; // -1: use the temperature of each configuration
  private volatile long handle; // 0: not loaded
  private boolean closed;

  /** Creates a module of type MODEL_TYPE_TEXT without opening the files. */
  public LlmModule(String modulePath, String tokenizerPath, float temperature) {
    this(MODEL_TYPE_TEXT, modulePath, tokenizerPath, temperature);
  }

  /**
   * Creates a module without opening the files.
   *
   * @param modelType MODEL_TYPE_TEXT or MODEL_TYPE_MULTIMODAL
   * @param modulePath the .pte file
   * @param tokenizerPath the tokenizer file, or null if the .pte file contains the tokenizer
   * @param temperature replaces the temperature of each configuration, unless it is -1
   */
  public LlmModule(int modelType, String modulePath, String tokenizerPath, float temperature) {
    if (modelType != MODEL_TYPE_TEXT && modelType != MODEL_TYPE_MULTIMODAL) throw new IllegalArgumentException("model type " + modelType + " is not supported");
    if (modulePath == null) throw new NullPointerException("the path of the model is null");
    this.modulePath = modulePath;
    this.tokenizerPath = tokenizerPath;
    this.temperature = temperature;
  }

  /** Loads the model, which the other methods do if needed. Returns 0 or the error code. */
  public synchronized int load() {
    if (closed) throw new IllegalStateException("the module is closed");
    if (handle != 0) return 0;
    long[] opened = new long[1];
    int error = open(modulePath, tokenizerPath, opened);
    handle = opened[0];
    return error;
  }

  /** Generates text after a prompt with the default options. Returns 0 or the error code. */
  public int generate(String prompt, LlmCallback callback) {
    return generate(prompt, LlmGenerationConfig.create().build(), callback);
  }

  /** Generates text after a prompt. `seqLen` is the maximum number of tokens of the prompt and the text. */
  public int generate(String prompt, int seqLen, LlmCallback callback) {
    return generate(prompt, LlmGenerationConfig.create().seqLen(seqLen).build(), callback);
  }

  /** Generates text after a prompt. `echo` sets whether the first piece is the prompt. */
  public int generate(String prompt, int seqLen, LlmCallback callback, boolean echo) {
    return generate(prompt, LlmGenerationConfig.create().seqLen(seqLen).echo(echo).build(), callback);
  }

  /**
   * Generates text after a prompt. Returns 0 or the error code, which the callback also receives. An exception of the callback ends the
   * generation. Throws IllegalArgumentException if the prompt or a path contains U+0000. An unpaired surrogate becomes U+FFFD.
   */
  public int generate(String prompt, LlmGenerationConfig config, LlmCallback callback) {
    return answer(prompt, null, config, callback);
  }

  /**
   * Generates the next message of a chat with the chat template of the file. `messages` is a JSON list of {"role", "content"} with all
   * messages of the conversation. Returns 0 or the error code.
   */
  public int chat(String messages, LlmGenerationConfig config, LlmCallback callback) {
    return chat(messages, "{}", config, callback);
  }

  /**
   * Generates the next message of a chat. `options` is a JSON object: "tools" and "tool_choice" have the format of OpenAI, and
   * "template" contains other variables of the chat template, such as {"enable_thinking": false}. Returns 0 or the error code.
   */
  public int chat(String messages, String options, LlmGenerationConfig config, LlmCallback callback) {
    return answer(messages, options, config, callback);
  }

  private synchronized int answer(String prompt, String chatOptions, LlmGenerationConfig config, LlmCallback callback) {
    int error = load();
    if (error == 0) error = answer(handle, prompt, chatOptions, config.getJson(temperature), callback);
    if (error != 0) callback.onError(error, message());
    return error;
  }

  /** Adds text to the context. Returns 0 or the error code. */
  public synchronized int prefillPrompt(String prompt) {
    int error = load();
    return error != 0 ? error : prefill(handle, prompt);
  }

  /** Adds an image to the context: values from 0 to 255 of shape [channels, height, width]. Returns 0 or the error code. */
  public synchronized int prefillImages(int[] image, int width, int height, int channels) {
    int error = load();
    if (error != 0) return error;
    byte[] data = new byte[image.length];
    for (int i = 0; i < image.length; i++) data[i] = (byte) image[i];
    checkSizes(image.length, width, height, channels);
    return prefillImage(handle, data, width, height, channels);
  }

  /** Adds an image to the context: normalized values, in the range of the model's encoder. Returns 0 or the error code. */
  public synchronized int prefillNormalizedImage(float[] image, int width, int height, int channels) {
    int error = load();
    if (error != 0) return error;
    checkSizes(image.length, width, height, channels);
    return prefillNormalized(handle, image, width, height, channels);
  }

  /**
   * Adds audio features of shape [batch, bins, frames] and starts a new conversation. generate("") then transcribes the audio. Returns 0
   * or the error code.
   */
  public synchronized int prefillAudio(float[] audio, int batchSize, int nBins, int nFrames) {
    int error = load();
    if (error != 0) return error;
    checkSizes(audio.length, batchSize, nBins, nFrames);
    return prefillSound(handle, audio, batchSize, nBins, nFrames);
  }

  /** Adds audio samples from -1 to 1 at the model's sample rate. Returns 0 or the error code. */
  public synchronized int prefillRawAudio(float[] samples) {
    java.util.Objects.requireNonNull(samples, "samples");
    int error = load();
    return error != 0 ? error : prefillSound(handle, samples, 0, 0, 0);
  }

  /** Saves the conversation to a file, which only this model can load. Returns 0 or the error code. */
  public synchronized int saveState(String path) {
    int error = load();
    return error != 0 ? error : state(handle, path, true);
  }

  /** Restores a conversation that saveState() has written. Returns 0 or the error code. */
  public synchronized int loadState(String path) {
    int error = load();
    return error != 0 ? error : state(handle, path, false);
  }

  /** Selects a LoRA adapter (a .ptd file), or none if `path` is null, and starts a new conversation. Returns 0 or the error code. */
  public synchronized int setAdapter(String path) {
    int error = load();
    return error != 0 ? error : adapt(handle, path);
  }

  /** Ends generate() after the current token. Any thread may call it while the module is open. */
  public void stop() {
    if (handle != 0) stop(handle);
  }

  /** Starts a new conversation. */
  public synchronized void resetContext() {
    if (handle != 0) reset(handle);
  }

  @Override
  public synchronized void close() {
    long closedHandle = handle;
    handle = 0;
    closed = true;
    if (closedHandle != 0) free(closedHandle);
  }

  private static void checkSizes(int length, int... sizes) {
    long count = 1;
    for (int size : sizes) {
      if (size <= 0 || count * size > length) throw new IllegalArgumentException("the sizes do not match " + length + " values");
      count *= size;
    }
    if (count != length) throw new IllegalArgumentException("the sizes do not match " + length + " values");
  }

  private static native int open(String model, String tokenizer, long[] handle);

  private static native int answer(long handle, String prompt, String chatOptions, String options, LlmCallback callback);

  private static native int prefill(long handle, String prompt);

  private static native int prefillImage(long handle, byte[] data, int width, int height, int channels);

  private static native int prefillNormalized(long handle, float[] data, int width, int height, int channels);

  private static native int prefillSound(long handle, float[] data, int batchSize, int nBins, int nFrames);

  private static native int state(long handle, String path, boolean saves);

  private static native int adapt(long handle, String path);

  private static native void stop(long handle);

  private static native void reset(long handle);

  private static native void free(long handle);

  private static native String message();
}
