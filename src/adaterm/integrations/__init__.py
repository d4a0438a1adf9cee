"""A Monitor where people train with a framework; each module needs the framework that it is named after."""
