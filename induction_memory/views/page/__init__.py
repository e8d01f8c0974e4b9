"""The page: measurements of a run, packed with plain scripts into one HTML file that needs no network."""
