"""Chrome traces, as written by PyTorch's recorder Kineto and other tools."""
