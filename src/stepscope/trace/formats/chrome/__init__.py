"""Chrome traces, as PyTorch's recorder Kineto and other tools write them."""
