// SPDX-License-Identifier: BSD-3-Clause
// In: digits.pte and seven.f32 among the assets. Out: the digit of the image, on the screen.
package org.torchette.digits;

import android.app.Activity;
import android.os.Bundle;
import android.widget.TextView;
import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import org.torchette.DType;
import org.torchette.EValue;
import org.torchette.Module;
import org.torchette.Tensor;

public final class MainActivity extends Activity {
  @Override
  protected void onCreate(Bundle state) {
    super.onCreate(state);
    TextView text = new TextView(this);
    text.setTextSize(96);
    setContentView(text);
    try {
      File model = new File(getFilesDir(), "digits.pte"); // a file can be mapped without a copy in memory
      try (FileOutputStream to = new FileOutputStream(model)) {
        to.write(asset("digits.pte"));
      }
      byte[] picture = asset("seven.f32");
      ByteBuffer pixels = ByteBuffer.allocateDirect(picture.length);
      pixels.put(picture).rewind();
      try (Module module = Module.load(model.getPath())) {
        EValue input = EValue.from(Tensor.fromBlob(pixels, new long[] {1, 64}, DType.FLOAT));
        float[] scores = module.forward(input)[0].toTensor().getDataAsFloatArray();
        int best = 0;
        for (int digit = 1; digit < scores.length; ++digit) if (scores[digit] > scores[best]) best = digit;
        text.setText(String.valueOf(best));
      }
    } catch (IOException | RuntimeException error) {
      text.setTextSize(16);
      text.setText(error.toString());
    }
  }

  private byte[] asset(String name) throws IOException {
    ByteArrayOutputStream all = new ByteArrayOutputStream();
    byte[] piece = new byte[8192];
    try (InputStream from = getAssets().open(name)) {
      for (int size = from.read(piece); size >= 0; size = from.read(piece)) all.write(piece, 0, size);
    }
    return all.toByteArray();
  }
}
