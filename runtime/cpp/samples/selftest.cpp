// Proves a bundle on this machine: every file by its hash, then the golden vectors through the decoder.
//
//     selftest BUNDLE [--backend NAME] [--device cpu|cuda[:N]] [--provider NAME] [--low-memory]
//
// Exit code 0: equal within the tolerance; 1: a difference, a file that is not the exported one, or a bundle that was
// judged and found bad when it was exported; 2: something that could not be run, named on stderr.
#include <blockexport/blockexport.h>

#include <iostream>
#include <string>

namespace {

bool run(const std::string& bundle, const blockexport::DecoderOptions& options) {
  const auto manifest = blockexport::read_manifest(bundle);
  try {
    blockexport::verify_files(manifest);
  } catch (const blockexport::Error& error) {
    std::cerr << "selftest: " << error.what() << '\n';
    return false;
  }
  std::cout << manifest.files.size() << " files are as they were exported\n";
  if (const auto reason = blockexport::why_bad(manifest)) {
    std::cerr << "selftest: " << *reason << ". " << (manifest.folder / "parity" / "report.md").string() << " says where and why\n";
    return false;
  }
  const auto golden = blockexport::read_golden(manifest);
  const auto decoder = blockexport::open_decoder(bundle, options);
  const auto result = blockexport::replay_golden(*decoder, golden);
  std::cout << golden.positions.size() << " golden positions: " << result.summary() << '\n';
  blockexport::check_capacity(*decoder);
  std::cout << "a token past slot " << decoder->max_sequence_length() - 1 << " is refused\n";
  return result.passed;
}

}  // namespace

int main(int argc, char** argv) {
  std::string bundle, device;
  blockexport::DecoderOptions options;
  options.exact = true;  // the golden outputs are
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--backend" && i + 1 < argc) {
      options.backend = argv[++i];
    } else if (word == "--device" && i + 1 < argc) {
      device = argv[++i];
    } else if (word == "--provider" && i + 1 < argc) {
      options.provider = argv[++i];
    } else if (word == "--low-memory") {
      options.low_memory = true;
    } else if (bundle.empty() && word.rfind("--", 0) != 0) {
      bundle = word;
    } else {
      bundle.clear();
      break;
    }
  }
  if (bundle.empty()) {
    std::cerr << "usage: selftest BUNDLE [--backend NAME] [--device cpu|cuda[:N]] [--provider NAME] [--low-memory]\n";
    return 2;
  }
  try {
    if (!device.empty()) blockexport::choose_device(options, device);
    const bool passed = run(bundle, options);
    std::cout << (passed ? "selftest passed" : "selftest FAILED: do not trust this build") << std::endl;
    return passed ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "selftest: " << error.what() << '\n';
    return 2;
  }
}
