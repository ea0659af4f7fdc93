"""Program text that all kinds of programs share."""
