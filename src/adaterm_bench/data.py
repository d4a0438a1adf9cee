"""What every data set has in common."""


class DataError(Exception):
    """Data that is missing or broken; the message names the file, the row if there is one, and what to do."""
