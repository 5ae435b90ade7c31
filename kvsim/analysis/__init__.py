"""What a run leaves behind: records, frames, figures, plots. None of it knows how it was run."""
