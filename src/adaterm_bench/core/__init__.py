"""The machinery: trials as values, where their results are stored, and what runs them; it knows no experiment."""
