"""Tables and arrays -> pictures on paper. Imports no model."""
