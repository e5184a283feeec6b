// SPDX-License-Identifier: BSD-3-Clause
// features log_mel SAMPLES BANDS FRAMES OUT: log_mel() of a file of float32.
// features pixels IMAGE WIDTH HEIGHT NEW_WIDTH NEW_HEIGHT OUT MEAN... STD...: pixels() of a file of bytes
// [3, height, width]. Both write float32.
#include "torchette/llm/media/features.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "torchette/llm/engine/session_state.h"

using namespace torchette;
using namespace torchette::extension::llm;

int main(int count, char** words) {
  const auto number = [&](int i) { return static_cast<size_t>(std::strtoull(words[i], nullptr, 10)); };
  Result<std::vector<uint8_t>> bytes = read_file(words[2]);
  if (!bytes.ok()) return 1;
  const bool is_audio = std::strcmp(words[1], "log_mel") == 0;
  std::vector<float> found;
  if (is_audio) {
    std::vector<float> samples(bytes->size() / sizeof(float));
    std::memcpy(samples.data(), bytes->data(), samples.size() * sizeof(float));
    found = log_mel(samples.data(), samples.size(), number(3), number(4));
  } else {
    std::vector<double> range;
    for (int i = 8; i < count; ++i) range.push_back(std::atof(words[i]));
    const Image image(std::move(*bytes), static_cast<int32_t>(number(3)), static_cast<int32_t>(number(4)), 3);
    found = pixels(image, number(6), number(5), {range.begin(), range.begin() + 3},
                   {range.begin() + 3, range.end()});
  }
  std::vector<uint8_t> out(found.size() * sizeof(float));
  std::memcpy(out.data(), found.data(), out.size());
  return write_file(words[is_audio ? 5 : 7], out) == Error::Ok ? 0 : 1;
}
