// Reads lines of JSON, each a text or a list of ids, and writes the ids, what they decode to, and what a stream gives.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "blockexport/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    const auto tokenizer = blockexport::load_tokenizer(argv[1]);
    std::ifstream lines(argv[2]);
    std::string line;
    while (std::getline(lines, line)) {
      const auto given = nlohmann::json::parse(line);
      const auto ids = given.is_string() ? tokenizer->encode(given.get<std::string>())
                                         : given.get<std::vector<std::int64_t>>();
      std::string streamed;
      auto stream = tokenizer->stream(false);
      for (const auto id : ids) {
        const std::string piece = stream->next(id);
        nlohmann::json(piece).dump();  // throws unless it is whole UTF-8
        streamed += piece;
      }
      streamed += stream->finish();
      const nlohmann::json out = {{"ids", ids},
                                  {"text", tokenizer->decode(ids)},
                                  {"special", tokenizer->decode(ids, false)},
                                  {"stream", streamed}};
      std::cout << out.dump() << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
