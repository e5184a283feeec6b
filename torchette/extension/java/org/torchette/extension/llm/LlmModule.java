// SPDX-License-Identifier: BSD-3-Clause
// In: a language model's .pte file, texts, images, sound. Out: answers, piece by piece. torchette_llm_jni.c has the native methods.
package org.torchette.extension.llm;

/**
 * A conversation with a language model. Each prompt continues after the last answer. Use it from one thread at a time (its
 * methods wait for each other), but for stop(); close it: its memory is outside of the Java heap.
 */
public final class LlmModule implements AutoCloseable {
  public static final int MODEL_TYPE_TEXT = 1;
  /** The file itself says what it takes: these do the same. */
  public static final int MODEL_TYPE_TEXT_VISION = 2, MODEL_TYPE_MULTIMODAL = 2;

  static {
    System.loadLibrary("torchette_llm_jni");
  }

  private final String modulePath, tokenizerPath;
  private final float temperature; // -1: that of each configuration
  private volatile long handle; // 0: not loaded
  private boolean closed;

  public LlmModule(String modulePath, String tokenizerPath, float temperature) {
    this(MODEL_TYPE_TEXT, modulePath, tokenizerPath, temperature);
  }

  /** Opens nothing yet. tokenizerPath: null where the file has its tokenizer. */
  public LlmModule(int modelType, String modulePath, String tokenizerPath, float temperature) {
    if (modelType != MODEL_TYPE_TEXT && modelType != MODEL_TYPE_MULTIMODAL) throw new IllegalArgumentException("models of type " + modelType + " are not supported");
    if (modulePath == null) throw new NullPointerException("the path of the model is null");
    this.modulePath = modulePath;
    this.tokenizerPath = tokenizerPath;
    this.temperature = temperature;
  }

  /** 0, or the runtime's number of the error. Asking loads by itself. */
  public synchronized int load() {
    if (closed) throw new IllegalStateException("the module is closed");
    if (handle != 0) return 0;
    long[] opened = new long[1];
    int error = open(modulePath, tokenizerPath, opened);
    handle = opened[0];
    return error;
  }

  public int generate(String prompt, LlmCallback callback) {
    return generate(prompt, LlmGenerationConfig.create().build(), callback);
  }

  public int generate(String prompt, int seqLen, LlmCallback callback) {
    return generate(prompt, LlmGenerationConfig.create().seqLen(seqLen).build(), callback);
  }

  public int generate(String prompt, int seqLen, LlmCallback callback, boolean echo) {
    return generate(prompt, LlmGenerationConfig.create().seqLen(seqLen).echo(echo).build(), callback);
  }

  /**
   * Returns 0, or the runtime's number of the error, which the callback also gets. An exception of the callback ends the answer. A
   * prompt with the character U+0000 is an IllegalArgumentException, as is such a path; a surrogate without its pair becomes U+FFFD.
   */
  public int generate(String prompt, LlmGenerationConfig config, LlmCallback callback) {
    return answer(prompt, null, config, callback);
  }

  /** The answer to messages, a JSON list of {"role", "content"}: the whole conversation, in the chat template of the file. */
  public int chat(String messages, LlmGenerationConfig config, LlmCallback callback) {
    return chat(messages, "{}", config, callback);
  }

  /**
   * The same with options, a JSON object: "tools" and "tool_choice" in the form of OpenAI, and "template" with other variables of the
   * chat template, such as {"enable_thinking": false}.
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

  /** Puts a text into the context. 0, or the runtime's number of the error. */
  public synchronized int prefillPrompt(String prompt) {
    int error = load();
    return error != 0 ? error : prefill(handle, prompt);
  }

  /** Puts an image into the context: bytes of 0 to 255, [channels, height, width]. 0, or the runtime's number of the error. */
  public synchronized int prefillImages(int[] image, int width, int height, int channels) {
    int error = load();
    if (error != 0) return error;
    byte[] data = new byte[image.length];
    for (int i = 0; i < image.length; i++) data[i] = (byte) image[i];
    fits(image.length, width, height, channels);
    return prefillImage(handle, data, width, height, channels);
  }

  /** The same of numbers as the model's encoder takes them. */
  public synchronized int prefillNormalizedImage(float[] image, int width, int height, int channels) {
    int error = load();
    if (error != 0) return error;
    fits(image.length, width, height, channels);
    return prefillNormalized(handle, image, width, height, channels);
  }

  /** Features of sound, [batch, bins, frames]. Starts a new conversation; generate("") then transcribes the sound. */
  public synchronized int prefillAudio(float[] audio, int batchSize, int nBins, int nFrames) {
    int error = load();
    if (error != 0) return error;
    fits(audio.length, batchSize, nBins, nFrames);
    return prefillSound(handle, audio, batchSize, nBins, nFrames);
  }

  /** Samples of sound, from -1 to 1, at the model's rate. */
  public synchronized int prefillRawAudio(float[] samples) {
    java.util.Objects.requireNonNull(samples, "samples");
    int error = load();
    return error != 0 ? error : prefillSound(handle, samples, 0, 0, 0);
  }

  /** Saves the conversation to a file, which belongs to this model. Returns 0, or the runtime's number of the error. */
  public synchronized int saveState(String path) {
    int error = load();
    return error != 0 ? error : state(handle, path, true);
  }

  /** Restores a conversation of saveState. Returns 0, or the runtime's number of the error. */
  public synchronized int loadState(String path) {
    int error = load();
    return error != 0 ? error : state(handle, path, false);
  }

  /** Uses a LoRA adapter, a .ptd file; null: none. Starts a new conversation. */
  public synchronized int setAdapter(String path) {
    int error = load();
    return error != 0 ? error : adapt(handle, path);
  }

  /** Ends generate() after the current token; from any thread, while the module is open. */
  public void stop() {
    if (handle != 0) stop(handle);
  }

  /** Starts a new conversation. */
  public synchronized void resetContext() {
    if (handle != 0) reset(handle);
  }

  @Override
  public synchronized void close() {
    long gone = handle;
    handle = 0;
    closed = true;
    if (gone != 0) free(gone);
  }

  private static void fits(int length, int... sizes) {
    long count = 1;
    for (int size : sizes) {
      if (size <= 0 || count * size > length) throw new IllegalArgumentException("the sizes are not those of " + length + " numbers");
      count *= size;
    }
    if (count != length) throw new IllegalArgumentException("the sizes are not those of " + length + " numbers");
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
