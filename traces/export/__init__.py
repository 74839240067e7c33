"""A trace in other forms: JSONL, CSV, Perfetto, and a report in one HTML file."""
