#include "sha256.h"

#include <array>
#include <cstdint>
#include <fstream>
#include <vector>

#include "blockexport/error.h"

namespace blockexport {
namespace {

constexpr std::array<std::uint32_t, 64> kRounds = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

std::uint32_t rotated(std::uint32_t value, unsigned by) { return value >> by | value << (32 - by); }

class Sha256 {
 public:
  void update(const unsigned char* bytes, std::size_t count) {
    total_ += count;
    for (; left_ > 0 && left_ < 64 && count > 0; --count) rest_[left_++] = *bytes++;
    if (left_ == 64) block(rest_.data()), left_ = 0;
    for (; count >= 64; bytes += 64, count -= 64) block(bytes);
    for (; count > 0; --count) rest_[left_++] = *bytes++;
  }

  /// The digest; nothing may be added after it.
  std::string finish() {
    // Padding: a one bit, zeros, and the length in bits.
    std::vector<unsigned char> tail(rest_.begin(), rest_.begin() + static_cast<std::ptrdiff_t>(left_));
    tail.push_back(0x80);
    while (tail.size() % 64 != 56) tail.push_back(0);
    for (unsigned shift = 64; shift > 0; shift -= 8) tail.push_back(static_cast<unsigned char>(total_ * 8 >> (shift - 8)));
    for (std::size_t at = 0; at < tail.size(); at += 64) block(tail.data() + at);
    return hex();
  }

 private:
  void block(const unsigned char* bytes) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t i = 0; i < 16; ++i) {
      w[i] = static_cast<std::uint32_t>(bytes[4 * i]) << 24 | static_cast<std::uint32_t>(bytes[4 * i + 1]) << 16 |
             static_cast<std::uint32_t>(bytes[4 * i + 2]) << 8 | bytes[4 * i + 3];
    }
    for (std::size_t i = 16; i < 64; ++i) {
      const std::uint32_t s0 = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3;
      const std::uint32_t s1 = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t s1 = rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25);
      const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
      const std::uint32_t s0 = rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22);
      const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> worked = {a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < 8; ++i) state_[i] += worked[i];
  }

  std::string hex() const {
    constexpr char digits[] = "0123456789abcdef";
    std::string out;
    for (const std::uint32_t word : state_) {
      for (unsigned shift = 32; shift > 0; shift -= 4) out += digits[word >> (shift - 4) & 15];
    }
    return out;
  }

  std::array<unsigned char, 64> rest_{};  // of a block that is not full yet: `left_` bytes
  std::size_t left_ = 0;
  std::uint64_t total_ = 0;
  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
};

std::ifstream opened(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(path.string() + " cannot be read: check that it exists and its permissions");
  return file;
}

/// Fills `buffer` as far as the file goes; returns how far.
std::size_t read(std::ifstream& file, std::vector<unsigned char>& buffer) {
  file.read(reinterpret_cast<char*>(buffer.data()), static_cast<std::streamsize>(buffer.size()));
  return static_cast<std::size_t>(file.gcount());
}

}  // namespace

std::string sha256_of(const std::filesystem::path& path) {
  std::ifstream file = opened(path);
  Sha256 hash;
  std::vector<unsigned char> buffer(std::size_t{1} << 16);
  while (file) hash.update(buffer.data(), read(file, buffer));
  if (file.bad()) throw Error(path.string() + " could not be read to its end: check the disk");
  return hash.finish();
}

std::string sampled_sha256_of(const std::filesystem::path& path) {
  constexpr std::uint64_t kPage = 4096, kFirst = 16, kSpread = 240;
  std::ifstream file = opened(path);
  const std::uint64_t pages = (std::filesystem::file_size(path) + kPage - 1) / kPage;
  Sha256 hash;
  std::vector<unsigned char> buffer(kPage);
  const auto add = [&](std::uint64_t page) {
    file.clear();
    file.seekg(static_cast<std::streamoff>(page * kPage));
    hash.update(buffer.data(), read(file, buffer));
    if (file.bad()) throw Error(path.string() + " could not be read to its end: check the disk");
  };
  const bool whole = pages <= kFirst + kSpread;
  for (std::uint64_t page = 0; page < (whole ? pages : kFirst); ++page) add(page);
  for (std::uint64_t i = 1; !whole && i <= kSpread; ++i) add(kFirst - 1 + i * (pages - kFirst) / kSpread);
  return hash.finish();
}

}  // namespace blockexport
