"""Answers to questions: what is best, why, what else would be, and what it takes."""
