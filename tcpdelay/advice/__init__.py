"""The guideline and its rules, as data."""
