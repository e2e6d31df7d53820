package sharegroups;

import java.io.*;
import java.lang.reflect.*;
import java.util.*;
import java.util.concurrent.*;

/**
 * Runs cases of share groups against a cluster, and prints a line of JSON for each.
 *
 * <p>Usage: Runner --bootstrap HOST:PORT[,HOST:PORT] [--profile NAME] [--parallel N] [CASE...]. Without names: all
 * cases of the profile. `--list` prints the names and profiles only. A case may ask for a change of the server: the
 * program prints {"request": ACTION}, and goes on when it reads a line.
 */
public final class Runner {
    private static final List<Class<?>> SUBJECTS = List.of(
        PollingCases.class, AcknowledgingCases.class, CallbackCases.class, GroupCases.class, StartCases.class,
        DeliveryCases.class, ThrottlingCases.class, RenewCases.class, LagCases.class, DeadLetterCases.class,
        MovementCases.class);
    private static final long TIMEOUT_S = 240;
    private static final PrintStream OUT = System.out;

    record Case(String name, String profile, Method body) {}

    /** Requests to the program that started this one: one at a time. */
    static final class Requests {
        private final BufferedReader answers = new BufferedReader(new InputStreamReader(System.in));

        synchronized void send(String action) throws IOException {
            print("{\"request\": " + Json.text(action) + "}");
            if (answers.readLine() == null) throw new EOFException("no answer to the request " + action);
        }
    }

    public static void main(String[] arguments) throws Exception {
        String bootstrap = null, profile = null;
        int parallel = 1;
        boolean list = false;
        Set<String> names = new LinkedHashSet<>();
        for (int at = 0; at < arguments.length; at++) {
            switch (arguments[at]) {
                case "--bootstrap" -> bootstrap = arguments[++at];
                case "--profile" -> profile = arguments[++at];
                case "--parallel" -> parallel = Integer.parseInt(arguments[++at]);
                case "--list" -> list = true;
                default -> names.add(arguments[at]);
            }
        }
        boolean all = names.isEmpty();
        List<Case> chosen = new ArrayList<>();
        for (Case each : cases())
            if ((all || names.remove(each.name())) && (profile == null || profile.equals(each.profile())))
                chosen.add(each);
        if (!names.isEmpty()) throw new IllegalArgumentException("no such cases: " + names);
        if (list) {
            for (Case each : chosen)
                print("{\"name\": " + Json.text(each.name()) + ", \"profile\": " + Json.text(each.profile()) + "}");
            return;
        }
        String run = Long.toString(System.currentTimeMillis() % 100_000_000, 36);
        Requests requests = new Requests();
        ExecutorService workers = Executors.newFixedThreadPool(parallel);
        for (int number = 0; number < chosen.size(); number++) {
            Case each = chosen.get(number);
            Scope scope = new Scope(bootstrap, "-" + run + "-" + number, requests);
            workers.submit(() -> run(each, scope));
        }
        workers.shutdown();
        workers.awaitTermination(1, TimeUnit.DAYS);
        System.exit(0); // threads of cases that were given up are left
    }

    /** In the order of the subjects, and by name. */
    static List<Case> cases() {
        List<Case> found = new ArrayList<>();
        for (Class<?> subject : SUBJECTS) {
            List<Method> methods = new ArrayList<>();
            for (Method method : subject.getDeclaredMethods())
                if (method.getName().startsWith("test")) methods.add(method);
            methods.sort(Comparator.comparing(Method::getName));
            for (Method method : methods) {
                Server server = method.getAnnotation(Server.class);
                found.add(new Case(method.getName(), server == null ? Server.DEFAULT : server.value(), method));
            }
        }
        return found;
    }

    private static void run(Case chosen, Scope scope) {
        long began = System.nanoTime();
        FutureTask<Void> task = new FutureTask<>(() -> {
            try (scope) {
                chosen.body().invoke(null, scope);
            } catch (InvocationTargetException error) {
                if (error.getCause() instanceof Exception cause) throw cause;
                throw (Error) error.getCause();
            }
            return null;
        });
        Thread thread = new Thread(task, chosen.name());
        thread.setDaemon(true);
        thread.start();
        Throwable error = null;
        try {
            task.get(TIMEOUT_S, TimeUnit.SECONDS);
        } catch (ExecutionException failed) {
            error = failed.getCause();
        } catch (TimeoutException | InterruptedException late) {
            error = new TimeoutException("not done in " + TIMEOUT_S + " s, is at " + place(thread.getStackTrace()));
            thread.interrupt();
        }
        double seconds = (System.nanoTime() - began) / 1e9;
        print("{\"name\": " + Json.text(chosen.name()) + ", \"outcome\": \"" + (error == null ? "passed" : "failed")
            + "\", \"seconds\": " + String.format(Locale.ROOT, "%.1f", seconds) + ", \"error\": "
            + (error == null ? "null" : Json.text(error + " at " + place(error.getStackTrace()))) + ", \"notes\": "
            + Json.texts(scope.notes()) + "}");
    }

    /** The innermost line of a case. */
    private static String place(StackTraceElement[] trace) {
        for (StackTraceElement each : trace)
            if (each.getClassName().endsWith("Cases")) return each.getFileName() + ":" + each.getLineNumber();
        return "an unknown line";
    }

    private static synchronized void print(String line) {
        OUT.println(line);
        OUT.flush();
    }
}
