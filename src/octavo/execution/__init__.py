"""How a step runs: slots, batch inputs, the two back ends' forward passes, the executor and its factory."""
