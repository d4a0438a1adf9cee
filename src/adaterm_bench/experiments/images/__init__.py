"""Images on clean data, and on data of which some batches are bad."""
