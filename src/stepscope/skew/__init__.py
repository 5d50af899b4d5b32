"""Which ranks come late, by the step records alone: asked where a training ends, and afterwards."""
