"""The parts of a model directory, each read and checked by itself. `tugline.engines.modeldir` puts them together."""
