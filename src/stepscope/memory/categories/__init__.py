"""What memory is for: parameters, gradients, activations and so on, each with its confidence."""
