// Chat with a bundle from the terminal.
//
//     chat BUNDLE "What is the capital of France?"     one answer
//     chat BUNDLE                                      a conversation; an empty line or end of input leaves
//
// Options: --raw (no chat template), --max-new-tokens N, --temperature T, --top-k K, --top-p P, --seed S,
//          --max-sequence-length M or -M M (cache slots, when other than the bundle's), --backend NAME,
//          --device cpu|cuda[:N], --threads N, --exact (quantised weights in the declared type), --low-memory,
//          --draft ngram|BUNDLE (proposes tokens that are verified several at a time), --draft-tokens K (8),
//          --verify-weights (every byte against the manifest), --quiet (no speed on stderr)
#include <blockexport/blockexport.h>

#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

namespace {

struct Arguments {
  std::string bundle, prompt, draft;
  bool has_prompt = false, raw = false, quiet = false;
  std::int64_t max_new_tokens = 256, draft_tokens = blockexport::kDraftTokens;
  blockexport::DecoderOptions decoder;
  std::optional<double> temperature, top_p;
  std::optional<std::int64_t> top_k;
  std::uint64_t seed = 0;
};

// std::stoll and its kin take what a text begins with: 12 of "12abc", 0 of "0,5".
template <typename Read>
auto whole(const std::string& value, Read read) {
  std::size_t end = 0;
  const auto number = read(value, &end);
  if (end != value.size()) throw std::invalid_argument(value);
  return number;
}

std::int64_t integer(const std::string& value) {
  return whole(value, [](const std::string& text, std::size_t* end) { return std::stoll(text, end); });
}

double real(const std::string& value) {
  return whole(value, [](const std::string& text, std::size_t* end) { return std::stod(text, end); });
}

// 0 means the bundle's own M in DecoderOptions, and is a mistake here.
std::int64_t slots(const std::string& value) {
  const std::int64_t given = integer(value);
  if (given < 1) throw blockexport::Error("--max-sequence-length is " + value + ": choose at least 1");
  return given;
}

int threads(const std::string& value) {
  return whole(value, [](const std::string& text, std::size_t* end) { return std::stoi(text, end); });
}

Arguments read_arguments(int argc, char** argv) {
  Arguments made;
  const auto set_slots = [&](const std::string& value) { made.decoder.max_sequence_length = slots(value); };
  const std::map<std::string, std::function<void(const std::string&)>> valued = {
      {"--max-new-tokens", [&](const std::string& value) { made.max_new_tokens = integer(value); }},
      {"--temperature", [&](const std::string& value) { made.temperature = real(value); }},
      {"--top-k", [&](const std::string& value) { made.top_k = integer(value); }},
      {"--top-p", [&](const std::string& value) { made.top_p = real(value); }},
      {"--max-sequence-length", set_slots},
      {"-M", set_slots},
      {"--seed", [&](const std::string& value) { made.seed = static_cast<std::uint64_t>(integer(value)); }},
      {"--draft", [&](const std::string& value) { made.draft = value; }},
      {"--draft-tokens", [&](const std::string& value) { made.draft_tokens = integer(value); }},
      {"--backend", [&](const std::string& value) { made.decoder.backend = value; }},
      {"--device", [&](const std::string& value) { blockexport::choose_device(made.decoder, value); }},
      {"--provider", [&](const std::string& value) { made.decoder.provider = value; }},
      {"--threads", [&](const std::string& value) { made.decoder.threads = threads(value); }}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto option = valued.find(word);
    if (option != valued.end()) {
      if (++i == argc) throw blockexport::Error(word + " needs a value");
      try {
        option->second(argv[i]);
      } catch (const std::logic_error&) {
        throw blockexport::Error(word + " takes a number, and was given " + argv[i]);
      }
    } else if (word == "--raw") {
      made.raw = true;
    } else if (word == "--quiet") {
      made.quiet = true;
    } else if (word == "--exact") {
      made.decoder.exact = true;
    } else if (word == "--low-memory") {
      made.decoder.low_memory = true;
    } else if (word == "--verify-weights") {
      made.decoder.verify_weights = true;
    } else if (word.rfind("--", 0) == 0) {
      throw blockexport::Error("there is no option " + word + ": the first lines of main.cpp list them");
    } else if (made.bundle.empty()) {
      made.bundle = word;
    } else if (!made.has_prompt) {
      made.prompt = word, made.has_prompt = true;
    } else {
      throw blockexport::Error("one prompt, please: put it in quotes");
    }
  }
  if (made.bundle.empty()) throw blockexport::Error("usage: chat BUNDLE [PROMPT]");
  return made;
}

// The bundle's suggestion, each given value taking its place; giving one samples, except at temperature 0.
blockexport::SamplingOptions sampling_options(const Arguments& arguments, blockexport::SamplingOptions made) {
  const bool sampled = arguments.temperature || arguments.top_k || arguments.top_p;
  if (made.temperature == 0.0 && sampled) made.temperature = 1.0;
  made.temperature = arguments.temperature.value_or(made.temperature);
  made.top_k = arguments.top_k.value_or(made.top_k);
  made.top_p = arguments.top_p.value_or(made.top_p);
  made.seed = arguments.seed;
  return made;
}

const char* reason(blockexport::FinishReason finish) {
  switch (finish) {
    case blockexport::FinishReason::kStopToken: return "stop token";
    case blockexport::FinishReason::kCacheFull: return "cache full";
    default: return "length";
  }
}

std::string answer(blockexport::Decoder& decoder, const blockexport::BundleText& text, blockexport::Sampler& sampler,
                   const std::vector<std::int64_t>& prompt, const Arguments& arguments, bool as_chat,
                   blockexport::Draft* draft) {
  std::string said;
  // An answer stands by itself; a raw prompt is gone on from, spaces included.
  auto stream = text.tokenizer().stream(!as_chat);
  const auto say = [&](const std::string& piece) {
    said += piece;
    std::cout << piece << std::flush;
  };
  const auto made = blockexport::generate(decoder, prompt, sampler, text.stop_ids(), arguments.max_new_tokens,
                                          [&](std::int64_t id) {
                                            say(stream->next(id));
                                            return static_cast<bool>(std::cout);
                                          },
                                          draft, arguments.draft_tokens);
  say(stream->finish());
  if (said.empty() || said.back() != '\n') std::cout << std::endl;
  if (!arguments.quiet) {
    std::cerr << "[" << made.ids.size() << " tokens";
    if (made.steps > 0) std::cerr << ", " << made.decode_seconds * 1e3 / static_cast<double>(made.steps) << " ms each";
    std::cerr << "; prompt of " << prompt.size() << " tokens in " << made.prefill_seconds
              << " s; ended by: " << reason(made.reason);
    if (draft != nullptr) std::cerr << "; draft: " << made.accepted << " of " << made.proposed << " tokens accepted";
    std::cerr << "]\n";
  }
  return said;
}

std::unique_ptr<blockexport::Draft> open_draft(const Arguments& arguments, const blockexport::Decoder& decoder) {
  if (arguments.draft.empty()) return nullptr;
  if (arguments.draft == "ngram") return blockexport::ngram_draft();
  return blockexport::model_draft(arguments.draft, decoder, arguments.decoder);
}

void run(const Arguments& arguments) {
  const auto decoder = blockexport::open_decoder(arguments.bundle, arguments.decoder);
  if (const auto reason = blockexport::why_bad(decoder->manifest())) std::cerr << "warning: " << *reason << '\n';
  const blockexport::BundleText text(decoder->manifest());
  blockexport::Sampler sampler(sampling_options(arguments, text.sampling()));
  const auto draft = open_draft(arguments, *decoder);
  const bool as_chat = text.has_chat() && !arguments.raw;
  if (!text.has_chat() && !arguments.raw && !arguments.quiet) {
    std::cerr << "note: the bundle has no chat_turns.json, so the prompt is sent as it is\n";
  }
  if (arguments.has_prompt) {
    const auto prompt = as_chat ? text.chat({{"user", arguments.prompt}}) : text.prompt(arguments.prompt);
    answer(*decoder, text, sampler, prompt, arguments, as_chat, draft.get());
    return;
  }
  std::vector<blockexport::Message> messages;
  for (std::string line; std::cerr << "> " << std::flush, std::getline(std::cin, line) && !line.empty();) {
    messages.push_back({"user", line});
    const auto prompt = as_chat ? text.chat(messages) : text.prompt(line);
    const std::string said = answer(*decoder, text, sampler, prompt, arguments, as_chat, draft.get());
    messages.push_back({"assistant", said});
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(read_arguments(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "chat: " << error.what() << '\n';
    return 2;
  }
}
