// How fast a bundle runs here: load time, time to the first new token, a step after it, and memory.
//
//     speed BUNDLE
//
// Options: --context T (tokens of the prompt, 64), --steps N (16), --rows B (1), --max-sequence-length M or -M M,
//          --backend NAME, --device cpu|cuda[:N], --threads N, --exact (quantised weights in the declared type), --low-memory
// With --asked it is driven by `blockexport bench`: for a line `load` it opens the bundle and answers `loaded`, and for
// `run ROWS STEPS ID ID ...` it answers the seconds to the first token in a line, and those of all steps in another.
#include <blockexport/blockexport.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

using Ids = std::vector<std::int64_t>;

struct Arguments {
  std::string bundle;
  std::int64_t context = 64, steps = 16, rows = 1;
  bool asked = false;
  blockexport::DecoderOptions decoder;
};

std::int64_t positive(const std::string& value) {
  std::size_t end = 0;
  const std::int64_t number = std::stoll(value, &end);
  if (end != value.size() || number < 1) throw std::invalid_argument(value);
  return number;
}

Arguments read_arguments(int argc, char** argv) {
  Arguments made;
  const auto slots = [&](const std::string& value) { made.decoder.max_sequence_length = positive(value); };
  const std::map<std::string, std::function<void(const std::string&)>> valued = {
      {"--context", [&](const std::string& value) { made.context = positive(value); }},
      {"--steps", [&](const std::string& value) { made.steps = positive(value); }},
      {"--rows", [&](const std::string& value) { made.rows = positive(value); }},
      {"--max-sequence-length", slots},
      {"-M", slots},
      {"--backend", [&](const std::string& value) { made.decoder.backend = value; }},
      {"--device", [&](const std::string& value) { blockexport::choose_device(made.decoder, value); }},
      {"--threads", [&](const std::string& value) { made.decoder.threads = static_cast<int>(positive(value)); }}};
  const std::map<std::string, bool*> flags = {{"--exact", &made.decoder.exact},
                                              {"--low-memory", &made.decoder.low_memory},
                                              {"--asked", &made.asked}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto option = valued.find(word);
    const auto flag = flags.find(word);
    if (option != valued.end()) {
      if (++i == argc) throw blockexport::Error(word + " needs a value");
      try {
        option->second(argv[i]);
      } catch (const std::logic_error&) {
        throw blockexport::Error(word + " takes a number of at least 1, and was given " + argv[i]);
      }
    } else if (flag != flags.end()) {
      *flag->second = true;
    } else if (word.rfind("-", 0) == 0) {
      throw blockexport::Error("there is no option " + word + ": the first lines of speed.cpp list them");
    } else if (made.bundle.empty()) {
      made.bundle = word;
    } else {
      throw blockexport::Error("one bundle, please, and not " + word + " as well");
    }
  }
  if (made.bundle.empty()) throw blockexport::Error("usage: speed BUNDLE");
  return made;
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// The likeliest next token of every row.
Ids likeliest(const blockexport::Logits& logits) {
  Ids chosen;
  for (std::int64_t row = 0; row < logits.batch_size; ++row) {
    const std::vector<float> values = logits.last(row);
    chosen.push_back(std::max_element(values.begin(), values.end()) - values.begin());
  }
  return chosen;
}

std::unique_ptr<blockexport::Decoder> open(const Arguments& arguments) {
  auto decoder = blockexport::open_decoder(arguments.bundle, arguments.decoder);
  if (decoder->manifest().headless) throw blockexport::Error("a headless bundle has no logits to choose tokens by");
  return decoder;
}

struct Times {
  double first_token, steps;
};

// `each` hears of the first token's time before the steps begin.
Times run(blockexport::Decoder& decoder, const Ids& prompt, std::int64_t rows, std::int64_t steps,
          const std::function<void(double)>& each = [](double) {}) {
  decoder.reset(rows);
  Ids next;
  Times times{};
  times.first_token = seconds_of([&] { next = likeliest(decoder.prefill_last({prompt, rows})); });
  each(times.first_token);
  times.steps = seconds_of([&] {
    for (std::int64_t i = 0; i < steps; ++i) next = likeliest(decoder.step({next, rows}));
  });
  return times;
}

void answer(const Arguments& arguments) {
  std::unique_ptr<blockexport::Decoder> decoder;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string wanted;
    words >> wanted;
    if (wanted == "load") {
      decoder = open(arguments);
      std::cout << "loaded" << std::endl;
    } else if (wanted == "run" && decoder != nullptr) {
      std::int64_t rows = 1, steps = 1;
      words >> rows >> steps;
      Ids prompt;
      for (std::int64_t id; words >> id;) prompt.push_back(id);
      const Times times = run(*decoder, prompt, rows, steps, [](double first) { std::cout << first << std::endl; });
      std::cout << times.steps << std::endl;
    } else {
      throw blockexport::Error("it was asked to " + line + ", and knows load and then run");
    }
  }
}

// Resident memory in megabytes; 0 where the system does not tell.
double resident_megabytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    double kilobytes = 0;
    if (word == "VmRSS:" && status >> kilobytes) return kilobytes * 1024 / 1e6;
  }
  return 0;
}

void tell(const Arguments& arguments) {
  std::unique_ptr<blockexport::Decoder> decoder;
  const double load = seconds_of([&] { decoder = open(arguments); });
  Ids prompt;
  for (std::int64_t i = 0; i < arguments.rows * arguments.context; ++i) {
    prompt.push_back((7919 * i + 5) % decoder->manifest().vocab_size);
  }
  run(*decoder, prompt, arguments.rows, 1);  // to warm up
  const Times times = run(*decoder, prompt, arguments.rows, arguments.steps);
  const double step = times.steps / static_cast<double>(arguments.steps);
  std::cout << "loaded in " << load * 1e3 << " ms; " << arguments.context << " tokens to the first new one: "
            << times.first_token * 1e3 << " ms; a step: " << step * 1e3 << " ms, "
            << static_cast<double>(arguments.rows) / step << " tokens/s; resident: " << resident_megabytes() << " MB\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Arguments arguments = read_arguments(argc, argv);
    arguments.asked ? answer(arguments) : tell(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "speed: " << error.what() << '\n';
    return 2;
  }
}
