#pragma once

/// Everything: open a bundle, run it, and turn text into tokens and back.
///
///     auto decoder = blockexport::open_decoder("bundle");
///     blockexport::BundleText text(decoder->manifest());
///     blockexport::Sampler sampler(text.sampling());
///     auto stream = text.tokenizer().stream(false);
///     blockexport::generate(*decoder, text.chat({{"user", "Hello"}}), sampler, text.stop_ids(), 100,
///                           [&](std::int64_t id) { std::cout << stream->next(id) << std::flush; return true; });

#include "blockexport/decoder.h"
#include "blockexport/draft.h"
#include "blockexport/error.h"
#include "blockexport/generate.h"
#include "blockexport/manifest.h"
#include "blockexport/sampling.h"
#include "blockexport/selftest.h"
#include "blockexport/text.h"
#include "blockexport/tokenizer.h"
