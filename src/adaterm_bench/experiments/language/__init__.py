"""Language models on clean data, and on data and gradients of which some are bad."""
