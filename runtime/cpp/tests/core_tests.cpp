// What needs no model: half precision, SHA-256, the sampler's vectors, expressions that are refused, broken UTF-8, huge
// pages.
// Usage: core_tests sampling_vectors.json FILE SHA256_OF_FILE BUNDLE_WITH_ENGINES
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "blockexport/error.h"
#include "blockexport/manifest.h"
#include "blockexport/sampling.h"
#include "engine_file.h"
#include "half.h"
#include "resident.h"
#include "sha256.h"
#include "text/regex.h"
#include "text/unicode.h"

namespace {

using Json = nlohmann::json;

int failures = 0;

void expect(bool good, const std::string& what) {
  if (good) return;
  std::cerr << "FAILED: " << what << '\n';
  ++failures;
}

template <typename F>
bool throws(F&& call, const std::string& part) {
  try {
    call();
  } catch (const blockexport::Error& error) {
    return std::string(error.what()).find(part) != std::string::npos;
  }
  return false;
}

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Every half comes back as itself; what lies between two halves goes to the nearer one, halfway to the even one.
void test_half() {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float wide = blockexport::float16_to_float(half);
    if (std::isnan(wide)) {
      expect(std::isnan(blockexport::float16_to_float(blockexport::float_to_float16(wide))), "NaN in float16");
    } else {
      expect(blockexport::float_to_float16(wide) == half, "float16 " + std::to_string(bits));
    }
    if ((bits & 0x7FFFU) < 0x7BFFU) {
      const float above = blockexport::float16_to_float(static_cast<std::uint16_t>(bits + 1));
      const float middle = (wide + above) / 2, nearer = std::nextafter(middle, above);
      const auto even = static_cast<std::uint16_t>((bits & 1U) == 0 ? bits : bits + 1);
      expect(blockexport::float_to_float16(middle) == even, "halfway above float16 " + std::to_string(bits));
      expect(blockexport::float_to_float16(nearer) == bits + 1, "just above halfway " + std::to_string(bits));
    }
    const float brain = blockexport::bfloat16_to_float(half);
    if (!std::isnan(brain)) expect(blockexport::float_to_bfloat16(brain) == half, "bfloat16 " + std::to_string(bits));
  }
  expect(blockexport::float_to_float16(65519.0F) == 0x7BFF && blockexport::float_to_float16(65520.0F) == 0x7C00,
         "the border to infinity");
  expect(blockexport::float_to_bfloat16(float_of(0x3F808000)) == 0x3F80, "bfloat16 halfway to even below");
  expect(blockexport::float_to_bfloat16(float_of(0x3F818000)) == 0x3F82, "bfloat16 halfway to even above");
  expect(std::isnan(blockexport::bfloat16_to_float(blockexport::float_to_bfloat16(float_of(0x7F800001)))), "bfloat16 NaN");
}

std::vector<float> made_logits(const Json& entry) {
  std::uint64_t state = entry.at("logits_seed");
  const double step = entry.at("step");
  std::vector<float> logits(entry.at("vocab_size").get<std::size_t>());
  for (float& logit : logits) {
    state += 0x9E3779B97F4A7C15U;
    std::uint64_t bits = state;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBU;
    bits ^= bits >> 31;
    logit = static_cast<float>(std::floor((static_cast<double>(bits >> 40) * 0x1p-20 - 8.0) / step) * step);
  }
  return logits;
}

void test_sampler(const std::string& path) {
  std::ifstream file(path);
  const Json vectors = Json::parse(file);
  for (const Json& entry : vectors.at("draws")) {
    const std::uint64_t seed = std::stoull(entry.at("seed").get<std::string>(), nullptr, 16);
    blockexport::Sampler sampler({entry.at("temperature"), entry.at("top_k"), entry.at("top_p"), seed});
    const std::vector<float> logits = made_logits(entry);
    for (const Json& token : entry.at("tokens")) expect(sampler.sample(logits) == token, "draw of " + entry.dump());
  }
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  blockexport::Sampler greedy;
  for (const auto& bad : {std::vector<float>{nan, 1}, {1, nan}, {inf, 1}, {-inf, -inf}, {}}) {
    expect(throws([&] { greedy.sample(bad); }, "logits"), "logits that cannot be sampled");
  }
  expect(greedy.sample({-inf, -0.0F, 0.0F}) == 1, "the lowest id among equals");
  expect(blockexport::Sampler({1.0, 1, 1.0, 0}).sample({-0.0F, 0.0F}) == 0, "-0 equals +0");
  expect(throws([] { blockexport::Sampler({-1.0, 0, 1.0, 0}); }, "temperature"), "a negative temperature");
  expect(throws([nan] { blockexport::Sampler({nan, 0, 1.0, 0}); }, "temperature"), "temperature NaN");
  expect(throws([] { blockexport::Sampler({1.0, -1, 1.0, 0}); }, "top-k"), "a negative top-k");
  expect(throws([] { blockexport::Sampler({1.0, 0, 0.0, 0}); }, "top-p"), "top-p 0");
}

std::string first_match(const std::string& pattern, std::string_view text) {
  const std::u32string points = blockexport::text::to_utf32(text);
  std::size_t steps = blockexport::text::Regex::steps_for(points);
  const std::size_t end = blockexport::text::Regex(pattern).match(points, 0, steps);
  return end == blockexport::text::Regex::npos ? "no match" : blockexport::text::to_utf8(points.substr(0, end));
}

void test_regex() {
  expect(first_match("a|ab", "abc") == "a", "the first alternative wins");
  expect(first_match("(?:a|b)*c", "abbac!") == "abbac", "a repeated group");
  expect(first_match("(?:ab|cd){2,3}", "abcdabab") == "abcdab", "a bounded repeated group");
  expect(first_match("\\s+(?!\\S)", "   x") == "  ", "look-ahead gives one back");
  expect(first_match("x{2}", "x") == "no match", "too few");
  expect(first_match("[^\\S\\n]+", " \t\nx") == " \t", "a negated class inside a class");
  expect(first_match("(?i:'LL)", "'lL") == "'lL", "case folding");
  expect(first_match("(?i:'s)", "'\u017F") == "'\u017F", "a long s folds onto s");
  expect(first_match("a(?=b)", "ac") == "no match", "look-ahead");
  for (const char* bad : {"a++", "a*?", "(?<x>a)", "(?>a)", "\\bx", "\\d", "a.b", "^a", "a$", "[a", "(a", "a)", "\\p{Greek}",
                          "(?:a*)*", "[a[b]]", "{2}", "*a", "(?i:[a-z])", "a{,}", "a{3,1}", "\\"}) {
    expect(throws([&] { blockexport::text::Regex regex(bad); }, "does not know"), std::string("refusal of ") + bad);
  }
  // Expressions of strangers that would take exponential time to match or to compile, all memory, or all of the stack.
  expect(throws([] { first_match("(x+x+)+y", std::string(50, 'x')); }, "too long to match"), "an exponential expression");
  std::string repeated = "a";
  for (int i = 0; i < 40; ++i) repeated = "(" + repeated + "){1,2}";
  expect(throws([&] { first_match(repeated, "b"); }, "too many repetitions"), "repetitions inside each other");
  expect(throws([] { first_match("((a{999}){999}){999}", "b"); }, "too many repetitions"), "a large expression");
  expect(throws([] { first_match(std::string(60, '('), "b"); }, "too many groups"), "deep groups");
  expect(throws([] { first_match(std::string(9999, '|'), "b"); }, "9999 characters"), "a long expression");
}

void test_utf8() {
  using blockexport::text::valid_utf8;
  // Unicode 3.9, tables 3-8 to 3-11: one replacement for each maximal part of a character.
  expect(valid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41") ==
             "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD" "A", "overlong forms");
  expect(valid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41") ==
             "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD" "A", "surrogates");
  expect(valid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42") ==
             "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD" "A" "\uFFFD\uFFFD" "B", "beyond the last code point");
  expect(valid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == "\uFFFD\uFFFD\uFFFD\uFFFD" "A", "cut off");
  expect(throws([] { blockexport::text::to_utf32("ab\xFF"); }, "byte 2"), "the offset of an invalid byte");
}

// Which engine fits which GPU: argv gives a folder whose manifest lists one for 8.6 and 8.9 and one for Ampere and later.
void test_engines(const std::string& bundle) {
  const blockexport::Manifest manifest = blockexport::read_manifest(bundle);
  const auto choose = [&](const char* backend, const char* gpu) {
    return blockexport::choose_engine(manifest, backend, gpu).name;
  };
  expect(choose("tensorrt-rtx", "8.9") == "engines/rtx.engine", "the engine for a GPU it lists");
  expect(choose("tensorrt", "12.0") == "engines/trt.engine", "an engine for Ampere and later");
  expect(throws([&] { choose("tensorrt-rtx", "12.0"); }, "8.6, 8.9 and this GPU has 12.0"), "an engine of another GPU");
  expect(throws([&] { choose("tensorrt", "7.5"); }, "this GPU has 7.5"), "a GPU before Ampere");
  const auto rtx = blockexport::choose_engine(manifest, "tensorrt-rtx", "8.6");
  expect(rtx.profiles.at(0).takes(2, 100) && !rtx.profiles.at(0).takes(9, 1), "the shapes of a profile");
  expect(throws([&] { blockexport::check_engine(manifest, rtx, "1.8"); }, "built by tensorrt-rtx 1.7.1.116"), "another version");
  expect(blockexport::check_engine(manifest, rtx, "1.7.1.116").filename() == "rtx.engine", "the same version");
  const auto trt = blockexport::choose_engine(manifest, "tensorrt", "8.0");
  expect(throws([&] { blockexport::check_engine(manifest, trt, "10.1"); }, "another model.onnx"), "an engine of another graph");
}

// Memory that is new and full moves into huge pages, with its values; what is half given back stays as it is.
void test_huge_pages() {
#ifdef __linux__
  constexpr std::size_t kBytes = 16 << 20, kHuge = 2 << 20, kPage = 4096;
  const auto fresh = [] {
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return static_cast<unsigned char*>(memory);
  };
  const auto fill = [](unsigned char* memory, std::size_t every) {
    for (std::size_t i = 0; i < kBytes; i += every) memory[i] = static_cast<unsigned char>(i / every % 251);
  };
  const auto huge = [] {
    std::ifstream file("/proc/self/smaps_rollup");
    std::size_t kilobytes = 0;
    for (std::string word; file >> word;) {
      if (word == "AnonHugePages:") file >> kilobytes;
    }
    return kilobytes << 10;
  };
  unsigned char* const probe = fresh();
  fill(probe, kPage);
  const std::size_t aligned = kHuge - reinterpret_cast<std::uintptr_t>(probe) % kHuge;
  if (huge() != 0 || madvise(probe + aligned, kHuge, 25) != 0) return;  // all memory is so, or none can be moved
  const auto before = blockexport::own_memory();
  unsigned char *const full = fresh(), *const holes = fresh();
  fill(full, 1);
  fill(holes, 2 * kPage);
  const std::size_t was = huge();
  blockexport::move_into_huge_pages(before, 0);
  expect(huge() == was, "no time, no huge pages");
  blockexport::move_into_huge_pages(before, 60);
  const std::size_t moved = huge() - was;
  expect(moved >= kBytes - 2 * kHuge && moved <= kBytes, "huge pages for " + std::to_string(moved) + " bytes");
  bool same = true;
  for (std::size_t i = 0; i < kBytes; ++i) same = same && full[i] == i % 251;
  expect(same, "values that moved");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  test_half();
  test_sampler(argv[1]);
  expect(blockexport::sha256_of(argv[2]) == argv[3], "the SHA-256 of a file");
  test_regex();
  test_utf8();
  test_huge_pages();
  test_engines(argv[4]);
  if (failures == 0) std::cout << "core tests passed\n";
  return failures == 0 ? 0 : 1;
}
