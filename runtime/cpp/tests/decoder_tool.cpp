// Runs what a JSON request says on a bundle, so that tests in Python can compare. Usage: decoder_tool REQUEST.json
//
// {"op": "run", "bundle": B, "options": {...}, "rows": 1, "calls": [{"ids": [...], "lengths": [...]}], "output": FILE}
//     the logits of every call as float32, one call after the other
// {"op": "generate", ..., "prompt": [...], "count": N, "sampling": {...}, "threads": T, "draft": "ngram" or a bundle}
//     T threads with a decoder each; prints {"ids": [[...], ...], "text": [...], "proposed": [...], "accepted": [...]}
// {"op": "prompt", "bundle": B, "text": T} or {..., "messages": [[role, content], ...]}
//     prints the token ids
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "blockexport/blockexport.h"

using Json = nlohmann::json;
using Ids = std::vector<std::int64_t>;

namespace {

std::unique_ptr<blockexport::Decoder> open(const Json& request) {
  const Json given = request.value("options", Json::object());
  blockexport::DecoderOptions options;
  options.backend = given.value("backend", options.backend);
  options.provider = given.value("provider", options.provider);
  if (given.contains("device")) blockexport::choose_device(options, given.at("device"));
  options.threads = given.value("threads", options.threads);
  options.low_memory = given.value("low_memory", options.low_memory);
  options.exact = given.value("exact", options.exact);
  options.max_sequence_length = given.value("max_sequence_length", options.max_sequence_length);
  options.verify_weights = given.value("verify_weights", options.verify_weights);
  return blockexport::open_decoder(request.at("bundle").get<std::string>(), options);
}

void run(const Json& request) {
  const auto decoder = open(request);
  const std::int64_t rows = request.value("rows", 1);
  decoder->reset(rows);
  std::ofstream output(request.at("output").get<std::string>(), std::ios::binary);
  for (const Json& call : request.at("calls")) {
    const Ids lengths = call.value("lengths", Ids{});
    blockexport::Logits logits{};
    if (call.contains("embeds")) {
      const auto embeds = call.at("embeds").get<std::vector<float>>();
      logits = decoder->prefill({embeds, decoder->manifest().hidden_size, rows}, lengths);
    } else {
      logits = decoder->prefill({call.at("ids").get<Ids>(), rows}, lengths);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t position = 0; position < logits.sequence_length; ++position) {
        const std::vector<float> values = logits.at(row, position);
        output.write(reinterpret_cast<const char*>(values.data()),
                     static_cast<std::streamsize>(values.size() * sizeof(float)));
      }
    }
  }
  std::cout << Json({{"lengths", decoder->lengths()}, {"room", decoder->room()}}) << '\n';
}

void generate(const Json& request) {
  const std::size_t count = request.value("threads", 1);
  std::vector<Ids> ids(count);
  std::vector<std::string> texts(count), errors(count);
  Ids proposed(count), accepted(count);
  const auto work = [&](std::size_t i) {
    try {
      const auto decoder = open(request);
      const blockexport::BundleText text(decoder->manifest());
      const Json given = request.value("sampling", Json::object());
      blockexport::SamplingOptions options;
      options.temperature = given.value("temperature", 0.0);
      options.top_k = given.value("top_k", std::int64_t{0});
      options.top_p = given.value("top_p", 1.0);
      options.seed = given.value("seed", std::uint64_t{0});
      blockexport::Sampler sampler(options);
      const auto stream = text.tokenizer().stream(false);
      const auto each = [&](std::int64_t id) {
        texts[i] += stream->next(id);
        return true;
      };
      std::unique_ptr<blockexport::Draft> draft;
      const std::string name = request.value("draft", "");
      if (name == "ngram") {
        draft = blockexport::ngram_draft();
      } else if (!name.empty()) {
        draft = blockexport::model_draft(name, *decoder);
      }
      const auto made = blockexport::generate(*decoder, request.at("prompt").get<Ids>(), sampler, text.stop_ids(),
                                              request.at("count"), each, draft.get(),
                                              request.value("draft_tokens", blockexport::kDraftTokens));
      ids[i] = made.ids;
      proposed[i] = made.proposed;
      accepted[i] = made.accepted;
      texts[i] += stream->finish();
    } catch (const std::exception& error) {
      errors[i] = error.what();
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < count; ++i) threads.emplace_back(work, i);
  work(0);
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) throw blockexport::Error(error);
  }
  std::cout << Json({{"ids", ids}, {"text", texts}, {"proposed", proposed}, {"accepted", accepted}}) << '\n';
}

void prompt(const Json& request) {
  const blockexport::BundleText text(blockexport::read_manifest(request.at("bundle").get<std::string>()));
  if (request.contains("text")) {
    std::cout << Json(text.prompt(request.at("text").get<std::string>())) << '\n';
    return;
  }
  std::vector<blockexport::Message> messages;
  for (const Json& message : request.at("messages")) messages.push_back({message.at(0), message.at(1)});
  std::cout << Json(text.chat(messages)) << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    std::ifstream file(argv[1]);
    const Json request = Json::parse(file);
    const std::string op = request.at("op");
    if (op == "run") {
      run(request);
    } else if (op == "generate") {
      generate(request);
    } else if (op == "prompt") {
      prompt(request);
    } else {
      return 2;
    }
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
