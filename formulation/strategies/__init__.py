"""Strategies of operators, their options and costs, and the conversions between layouts."""
