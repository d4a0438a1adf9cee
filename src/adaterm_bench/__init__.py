"""The paper's experiments, and whatever you add: trials that are values, results that are never lost or run twice."""
