"""What a graph can be examined for."""

from __future__ import annotations

from blockexport.export.bundle.trt_library import TENSORRT

CUDA = "onnxruntime-cuda"
TARGETS = (TENSORRT, CUDA)
