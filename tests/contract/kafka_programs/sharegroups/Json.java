package sharegroups;

import java.util.List;
import java.util.stream.Collectors;

/** Texts as JSON. */
final class Json {
    private Json() {}

    static String text(String text) {
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') quoted.append('\\').append(each);
            else if (each < ' ' || each > '~') quoted.append(String.format("\\u%04x", (int) each));
            else quoted.append(each);
        }
        return quoted.append('"').toString();
    }

    static String texts(List<String> texts) {
        return texts.stream().map(Json::text).collect(Collectors.joining(", ", "[", "]"));
    }
}
