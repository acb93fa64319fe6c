// The third way to run a bundle from C++: onnxruntime-genai takes the folder as it is (genai_config.json says how).
// Its tokenizer and chat template are its own.
//
//     genai_chat BUNDLE "What is the capital of France?" [MAX_NEW_TOKENS]
#include <ort_genai.h>

#include <chrono>
#include <iostream>
#include <string>

namespace {

// A JSON string: what must be escaped is.
std::string quoted(const std::string& text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char byte : text) {
    const auto value = static_cast<unsigned char>(byte);
    if (value < 0x20) {
      out += std::string("\\u00") + digits[value >> 4] + digits[value & 15];
    } else {
      if (byte == '"' || byte == '\\') out += '\\';
      out += byte;
    }
  }
  return out + '"';
}

void answer(const char* bundle, const std::string& question, int max_new_tokens) {
  const auto model = OgaModel::Create(bundle);
  const auto tokenizer = OgaTokenizer::Create(*model);
  const std::string messages = R"([{"role": "user", "content": )" + quoted(question) + "}]";
  const OgaString prompt = tokenizer->ApplyChatTemplate(nullptr, messages.c_str(), nullptr, true);
  const auto ids = OgaSequences::Create();
  tokenizer->Encode(prompt, *ids);

  const auto parameters = OgaGeneratorParams::Create(*model);
  parameters->SetSearchOption("max_length", static_cast<double>(ids->SequenceCount(0)) + max_new_tokens);
  const auto generator = OgaGenerator::Create(*model, *parameters);
  generator->AppendTokenSequences(*ids);
  const auto stream = OgaTokenizerStream::Create(*tokenizer);
  const auto started = std::chrono::steady_clock::now();
  int count = 0;
  for (auto shown = generator->GetSequenceCount(0); !generator->IsDone(); ++count) {
    generator->GenerateNextToken();
    const auto length = generator->GetSequenceCount(0);
    if (length == shown) continue;  // a stop token, which does not become part of the sequence
    std::cout << stream->Decode(generator->GetSequenceData(0)[length - 1]) << std::flush;
    shown = length;
  }
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - started;
  std::cout << '\n';
  std::cerr << "[" << count << " tokens, " << elapsed.count() / count << " ms each]\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::cerr << "usage: genai_chat BUNDLE QUESTION [MAX_NEW_TOKENS]\n";
    return 2;
  }
  try {
    const OgaHandle runtime;  // shuts onnxruntime-genai down at the end
    answer(argv[1], argv[2], argc == 4 ? std::stoi(argv[3]) : 64);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "genai_chat: " << error.what() << '\n';
    return 2;
  }
}
