// SPDX-License-Identifier: BSD-3-Clause
// Damages bytes; the result depends only on the bytes and `state`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "torchette/runtime/platform.h"

inline uint64_t state = 0;

inline uint64_t chance(uint64_t below) {
  uint64_t z = state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  return (z ^ z >> 29) % below;
}

/// Byte sequences that are difficult for readers of these files.
inline constexpr std::string_view kPieces[] = {"{",
                                               "}",
                                               "[",
                                               "]",
                                               "[[[[",
                                               "\"",
                                               "\\u",
                                               "\\ud800",
                                               "\\udc00",
                                               ":",
                                               ",",
                                               "null",
                                               "true",
                                               "-1",
                                               "0",
                                               "1e400",
                                               "1e9",
                                               "4294967295",
                                               "2147483648",
                                               "1048577",
                                               "0.5",
                                               "[]",
                                               "{}",
                                               "\"\"",
                                               "\xFF",
                                               "\xE2\x96",
                                               "\xF0\x9F\x98\x80",
                                               "\\\\p{L}",
                                               "(?:",
                                               ")*",
                                               "(a*)*",
                                               "[^",
                                               "\\\\s+(?!\\\\S)",
                                               "{1000}",
                                               "{0,999}",
                                               "a{500}b{500}",
                                               "(?=",
                                               "(?<=",
                                               "\\\\p{Han}",
                                               "+",
                                               "*+",
                                               "\"BPE\"",
                                               "\"Unigram\"",
                                               "\"WordPiece\"",
                                               "\"WordLevel\"",
                                               "\"Sequence\"",
                                               "\"Metaspace\"",
                                               "\"Precompiled\"",
                                               "\"ByteLevel\"",
                                               "\"Split\"",
                                               "\"Replace\"",
                                               "\"Strip\"",
                                               "\"Bert\"",
                                               "\x08\xFF\xFF\xFF\xFF\x0F",
                                               "\x0A\x7F",
                                               "\x12\x05",
                                               "\"$ref\": \"#\"",
                                               "\"type\": \"array\"",
                                               "\"pattern\": \"",
                                               "\"required\"",
                                               "\"additionalProperties\": true",
                                               "\"allOf\": [",
                                               "root ::= ",
                                               "{0,10000}",
                                               "[^\\x00-\\U0010ffff]",
                                               "18446744073709551615",
                                               "9007199254740993",
                                               "float16"};

inline std::string mutated(std::string bytes) {
  for (uint64_t i = chance(3) == 0 ? 1 + chance(5) : 1; i > 0; --i) {
    if (bytes.empty()) return bytes;
    const size_t at = chance(bytes.size());
    const size_t size = std::min<size_t>(chance(40), bytes.size() - at);
    const std::string_view piece = kPieces[chance(std::size(kPieces))];
    switch (chance(6)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ 1 << chance(8));
        break;
      case 1:
        bytes.erase(at, size);
        break;
      case 2:
        bytes.insert(at, bytes.substr(chance(bytes.size()), size));
        break;
      case 3:
        bytes.resize(at);
        break;
      case 4:
        bytes.replace(at, std::min(piece.size(), bytes.size() - at), piece);
        break;
      default:
        bytes.insert(at, piece);
    }
  }
  return bytes;
}

/// Discards the log of the readers.
inline void silence() {
  torchette::PalImpl silent;
  silent.emit_log_message = [](torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                               const char*, size_t) {};
  torchette::register_pal(silent);
}
