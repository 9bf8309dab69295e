"""Many questions at once: the product of lists of options, each cell answered once and kept."""
